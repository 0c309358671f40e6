"""The checkpoint service's store over a disk in memory.

It follows checkpoint_store.py, local_files.py and catalog.py of services/checkpoint/store operation
by operation (commit.py here follows commit.py there), because the real ones on a real filesystem
take milliseconds a save. The retention rules, messages, facts and manifests are real. A
checkpoint's bytes are the model's step and value; its checksum is their text.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

from procsv.base.clock import Clock
from procsv.base.run.manifest import Manifest, Reason
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, Durable, Rejected
from procsv.ipc.messaging.start import Start
from procsv.services.checkpoint.core.facts import Candidate, DiskState, FoundCheckpoint, SavableState
from procsv.services.checkpoint.core.retention import ListedCheckpoint, Rule, first_keep, retain
from procsv.services.checkpoint.format.manifest import MANIFEST_VERSION
from procsv.services.checkpoint.store.checkpoint_store import SlotBad, SlotGone, Store
from tests.simulation.model.checkpoints import (
    HOME,
    SAVE_PATH,
    STAGING,
    STATE_FILE,
    Intent,
    base_name,
    files_of,
    manifest_at,
    sum_of,
)
from tests.simulation.model.commit import SimStagingArea, Steps, run_through
from tests.simulation.model.disk import SimDisk
from tests.simulation.model.memory import SimMemory, SlotIsGone

MEMORY = f"{HOME}/checkpoints.json"
_OURS = re.compile(r"/logdir/model\.ckpt-(\d+)\.(index|data|manifest\.json)$")


class SimStore(Store):
    """Everything that the service does with files: the jobs of its disk thread."""

    def __init__(self, disk: SimDisk, memory: SimMemory, start: Start, last_run: str, clock: Clock) -> None:
        self._disk, self._shared, self._run, self._last_run, self._clock = disk, memory, start.run, last_run, clock
        self._follows = start.incarnation > 1
        self._staging_area = SimStagingArea(disk)
        self._is_recovered = False
        self._has_swept = False
        self._undeleted: list[str] = []
        self._serving = ""

    # -- at the start ----------------------------------------------------------------------------------------
    def lineage(self) -> frozenset[str]:
        known = set(self._disk.files[MEMORY].content[0] if MEMORY in self._disk.files else ())
        known |= {self._last_run}
        lineage = frozenset(known & {info.run for info in self._shared.infos()}) - {self._run}
        with contextlib.suppress(OSError):
            self._disk.replace(MEMORY, (tuple(sorted({*lineage, self._run})), self._next_keep()))
        return lineage

    def _next_keep(self) -> float | None:
        node = self._disk.files.get(MEMORY)
        return None if node is None else node.content[1]

    def open(self) -> None:
        self._take_up()

    def _take_up(self) -> None:
        if not self._is_recovered:
            self._staging_area.recover()
            self._is_recovered = self._staging_area.is_empty()

    def list_checkpoints(self, plan: CheckpointPlan) -> DiskState:
        with contextlib.suppress(OSError):
            self._make_ready()
        candidates, kept, _, _ = self._listing()
        if not candidates:
            return DiskState(-1, 0, None, ())
        top, newest = max(c.sequence for c in candidates), candidates[0]
        durable = None
        if newest.sequence and (self._follows or self._shared.infos()) and self._verify(newest.path) == "":
            durable = self._durable(self._staging_area.manifest(newest.path), newest.path, 0.0, kept)
        return DiskState(newest.step, top, durable, kept, newest_sequence=newest.sequence)

    def _durable(self, manifest: Manifest | None, path: str, seconds: float, kept: tuple[str, ...]) -> Durable:
        assert manifest is not None, path
        return Durable(
            manifest.sequence,
            manifest.step,
            manifest.incarnation,
            path,
            manifest.reason,
            1,
            seconds,
            kept,
            run=manifest.run,
        )

    def _make_ready(self) -> None:
        self._take_up()
        if not self._has_swept:
            for path in self._disk.under("/logdir/checkpoint.new"):
                self._disk.unlink(path)
            self._finish_deletions()
            self._has_swept = True

    def _finish_deletions(self) -> None:
        listed = {candidate.path for candidate in self._listing()[0] if candidate.listed}
        for name in self._disk.under(SAVE_PATH):
            path = name.removesuffix(".manifest.json")
            if path != name and path not in listed and files_of(path)[1] not in self._disk.files:
                self._staging_area.delete(path)

    # -- contents --------------------------------------------------------------------------------------------
    def _listing(self) -> tuple[list[Candidate], tuple[str, ...], bool, str]:
        """Do catalog.list_checkpoints: candidates in order of trial, those kept, whether anything
        exists, and trouble.
        """
        state = self._disk.read(STATE_FILE)
        trouble = "" if state is None or state[:1] != ("spoilt",) else "the checkpoint file is garbled"
        listed = list(reversed(state)) if state and not trouble else []
        found = {match[1] for name in self._disk.files if (match := _OURS.match(name)) and match[2] == "index"}
        unlisted = [f"{SAVE_PATH}-{step}" for step in sorted(map(int, found), reverse=True)]
        candidates = [self._candidate(path, True) for path in listed]
        candidates += [self._candidate(path, False) for path in unlisted if path not in listed]
        kept = tuple(path for path in reversed(listed) if self._has_files(path))
        leftovers = any(".rejected" in name or _OURS.match(name) for name in self._disk.files)
        return candidates, kept, bool(candidates) or bool(trouble) or leftovers, trouble

    def _candidate(self, path: str, listed: bool) -> Candidate:
        manifest = self._staging_area.manifest(path)
        if manifest is not None:
            return Candidate(path, manifest.step, manifest.sequence, listed)
        return Candidate(path, int(path.rpartition("-")[2]), 0, listed)

    def _has_files(self, path: str) -> bool:
        return files_of(path)[1] in self._disk.files

    def _verify(self, path: str) -> str:
        """Return what is wrong with a checkpoint, or ""."""
        if not self._has_files(path):
            return "its files are gone"
        manifest = self._staging_area.manifest(path)
        if manifest is None:
            return "its manifest is gone or cannot be read"
        for name in manifest.files:
            content = self._disk.read(f"/logdir/{name}")
            if content is None or sum_of(content) != manifest.files[name]:
                return f"{name} does not match its checksum"
        return ""

    # -- restoring -------------------------------------------------------------------------------------------
    def find_checkpoint(self, plan: CheckpointPlan, before: int = -1) -> FoundCheckpoint:
        with contextlib.suppress(OSError):
            self._make_ready()
        found = self._find(plan, before)
        self._serving = found.checkpoint.path if found.checkpoint else ""
        return found

    def newest(self) -> tuple[int, int]:
        """Return step and sequence of the checkpoint that would be restored, or -1 and 0."""
        candidates = self._listing()[0]
        return (candidates[0].step, candidates[0].sequence) if candidates else (-1, 0)

    def _find(self, plan: CheckpointPlan, before: int) -> FoundCheckpoint:
        candidates, kept, exists, trouble = self._listing()
        rejected: list[Rejected] = []
        bad: set[str] = set()
        for position, candidate in enumerate(candidates):
            if 0 <= before <= candidate.step:
                continue
            try:
                why = self._verify_twice(candidate.path)
            except OSError as trouble_now:
                rejected.append(Rejected(candidate.path, f"it cannot be read: {trouble_now}"))
                continue
            if why:
                self._quarantine(candidate.path)
                bad.add(candidate.path)
                rejected.append(Rejected(candidate.path, why))
                continue
            if (bad or trouble) and before < 0:
                kept = self._relist(plan, candidates, position, bool(trouble), bad)
            return FoundCheckpoint(candidate, kept, tuple(rejected), "")
        error = "there are checkpoints, and none of them can be restored" if exists else ""
        return FoundCheckpoint(None, kept if before >= 0 else (), tuple(rejected), error)

    def _verify_twice(self, path: str) -> str:
        try:
            return self._verify(path)
        except OSError:
            return self._verify(path)

    def _quarantine(self, path: str) -> None:
        base = base_name(path)
        number = 1
        while self._disk.under(f"{path}.rejected.{number}/"):
            number += 1
        for name in [*files_of(path), manifest_at(path)]:
            if name in self._disk.files:
                self._disk.rename(name, f"/logdir/{base}.rejected.{number}/{base_name(name)}")

    def _relist(
        self, plan: CheckpointPlan, candidates: list[Candidate], position: int, garbled: bool, bad: set[str]
    ) -> tuple[str, ...]:
        good = candidates[position]
        older = [c for c in candidates[position + 1 :] if self._has_files(c.path)]
        older = [c for c in older if c.listed] if good.listed and not garbled else older
        unread = [c.path for c in candidates[:position] if c.listed and c.path not in bad]
        paths = (*(c.path for c in reversed(older[: max(0, plan.max_to_keep - 1)])), good.path, *reversed(unread))
        self._disk.replace(STATE_FILE, paths)
        return paths

    def release(self) -> None:
        self._serving = ""

    def verify_slot(self, info: Any) -> None:
        if not self._read_slot(info).is_good:
            raise SlotBad(f"slot {info.path.name}: a tensor does not match its checksum")

    def _read_slot(self, info: Any) -> Any:
        try:
            return self._shared.read(info)
        except SlotIsGone as gone:
            raise SlotGone(str(gone)) from gone

    # -- saving ----------------------------------------------------------------------------------------------
    def persist(self, state: SavableState, reason: Reason, plan: CheckpointPlan | None) -> Durable:
        assert plan is not None
        content = ("variables", state.step, self._value(state))
        self._make_ready()
        path = f"{SAVE_PATH}-{state.step}"
        staging = self._staging_of(state)
        self._disk.remove_all(f"{staging}/")
        try:
            for name, part in zip(files_of(path), (content, ("index", *content[1:])), strict=True):
                self._disk.write(f"{staging}/{base_name(name)}", part)
            for name in files_of(path):
                self._disk.fsync(f"{staging}/{base_name(name)}")
        except OSError:
            self._discard(staging)
            raise
        return self._put_in_place(path, staging, state, reason, plan)

    def _staging_of(self, state: SavableState) -> str:
        return f"{STAGING}{state.sequence}.{self._run}"

    def _discard(self, staging: str) -> None:
        self._disk.remove_all(f"{staging}/")
        self._is_recovered = False

    def _value(self, state: SavableState) -> int:
        if state.slot is None:
            staged = self._shared.staged.get(state.staged)
            if staged is None:
                raise SlotGone(f"{state.staged} is gone")
            return staged[2]
        slot = self._read_slot(state.slot)
        if not slot.is_good:
            raise SlotBad(f"slot {state.slot.path.name}: a tensor does not match its checksum")
        return int(slot.value)

    def _put_in_place(
        self, path: str, staging: str, state: SavableState, reason: Reason, plan: CheckpointPlan
    ) -> Durable:
        return run_through(self._put_in_steps(path, staging, state, reason, plan))

    def _put_in_steps(
        self, path: str, staging: str, state: SavableState, reason: Reason, plan: CheckpointPlan
    ) -> Steps[Durable]:
        now = self._clock.wall()
        sums = {base_name(n): sum_of(self._disk.read(f"{staging}/{base_name(n)}")) for n in files_of(path)}
        manifest = Manifest(
            MANIFEST_VERSION, state.step, state.sequence, state.incarnation, state.run, reason, now, sums
        )
        kept = self._listing()[1]
        noted = self._next_keep()
        next_keep = first_keep(now, plan.keep_every_n_hours) if noted is None else noted
        outcome = retain(
            [ListedCheckpoint(p, m.time if (m := self._staging_area.manifest(p)) is not None else 0.0) for p in kept],
            ListedCheckpoint(path, now),
            Rule(plan.max_to_keep, plan.keep_every_n_hours, next_keep),
        )
        served = tuple(p for p in outcome.delete if p == self._serving)
        delete = tuple(p for p in (*self._undeleted, *outcome.delete) if p != self._serving)
        before = self._disk.read(STATE_FILE)
        replaces = any(name in self._disk.files for name in (*files_of(path), manifest_at(path)))
        intent = Intent(path, manifest, served + outcome.listed, delete, before, replaces)
        try:
            self._undeleted = yield from self._staging_area.commit_in_steps(staging, intent)
        except OSError:
            self._is_recovered = False
            raise
        self._is_recovered = self._staging_area.is_empty()
        if state.staged:
            self._shared.staged.pop(state.staged, None)
        return self._durable(manifest, path, 0.1, intent.listed)
