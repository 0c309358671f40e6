"""Catalog of the checkpoints in a remote directory: find, verify, move the bad ones aside.

Called by store.py, on the disk thread.  As catalog.py decides, so does this; it only reads through TensorFlow's
filesystem.  Never deletes: what must not be used is moved into `<name>.rejected/` beside it.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace

from procsv.base.run.manifest import MANIFEST_SUFFIX, Manifest
from procsv.ipc.messaging.messages import CheckpointPlan
from procsv.services.checkpoint.core.facts import Candidate, Found, Rejection
from procsv.services.checkpoint.remote import files as files
from procsv.services.checkpoint.store.manifest import BadCheckpoint, decode_manifest
from procsv.services.checkpoint.store.names import step_in_name
from procsv.services.checkpoint.store.state_file import GarbledStateFile, StateFile, parse_state, state_of_names

_PART = re.compile(r"(\.index|\.data-\d{5}-of-\d{5}|\.meta|\.manifest\.json)$")


class RemoteCatalog:
    """The checkpoints of one plan, as they were found when it was made."""

    def __init__(self, plan: CheckpointPlan) -> None:
        self.plan = plan
        self.directory = files.directory_of(plan.save_path)
        self.basename = files.name_of(plan.save_path)
        self.state_url = files.join(self.directory, plan.latest_filename)
        self.names = files.names_in(self.directory)
        self.trouble = ""
        state: StateFile | None = None
        if plan.latest_filename in self.names:
            try:
                state = parse_state(files.read(self.state_url), self.state_url)
            except GarbledStateFile as error:
                self.trouble = str(error)
        listed = self._listed(state) if state is not None else []
        others = [path for path in self._by_name() if path not in listed]
        self.candidates = [self._candidate(path, True) for path in listed]
        self.candidates += [self._candidate(path, False) for path in others]

    @property
    def exists(self) -> bool:
        """Something was saved here once: a run must not start from step 0."""
        remains = re.compile(re.escape(self.basename) + r"(-\d+)?(\.rejected(\.\d+)?|\.data-.*|\.manifest\.json)$")
        return bool(self.candidates or self.trouble) or any(remains.match(name) for name in self.names)

    @property
    def kept(self) -> tuple[str, ...]:
        """The checkpoints that are listed and there, oldest first."""
        return tuple(c.path for c in reversed(self.candidates) if c.listed and self.is_there(c.path))

    def is_there(self, path: str) -> bool:
        if files.directory_of(path) == self.directory:
            return f"{files.name_of(path)}.index" in self.names
        with contextlib.suppress(OSError):
            return files.exists(f"{path}.index")
        return False

    def files_of(self, path: str) -> list[str]:
        """The names of a checkpoint's files that are there; the index, without which it is none, first."""
        name = files.name_of(path)
        found = [n for n in self.names if n.startswith(f"{name}.") and _PART.fullmatch(n[len(name) :])]
        return sorted(found, key=lambda n: (not n.endswith(".index"), n.endswith(MANIFEST_SUFFIX), n))

    def manifest_of(self, path: str) -> Manifest | None:
        """BadCheckpoint if it makes no sense."""
        try:
            return decode_manifest(files.read(path + MANIFEST_SUFFIX))
        except FileNotFoundError:
            return None

    def _listed(self, state: StateFile) -> list[str]:
        order = [state.latest] + [path for path in reversed(state.all_paths) if path != state.latest]
        found = []
        for path in order:
            # A logdir that was moved or copied still lists its old paths: what lies here is meant.
            beside = files.join(self.directory, files.name_of(path))
            found.append(beside if self.is_there(beside) else files.join(self.directory, path))
        return found

    def _by_name(self) -> list[str]:
        numbered = re.compile(re.escape(self.basename) + r"(-\d+)?\.index")
        found = [name.removesuffix(".index") for name in self.names if numbered.fullmatch(name)]
        return [files.join(self.directory, name) for name in sorted(found, key=step_in_name, reverse=True)]

    def _candidate(self, path: str, listed: bool) -> Candidate:
        with contextlib.suppress(BadCheckpoint, OSError):
            manifest = self.manifest_of(path)
            if manifest is not None:
                return Candidate(path, manifest.step, manifest.sequence, listed)
        return Candidate(path, step_in_name(path), 0, listed)

    # -- which are good -----------------------------------------------------------------------------------------
    def find(self, before: int = -1) -> Found:
        """The first good checkpoint; bad ones on the way are moved aside.

        `before`: those of this step and later are passed over and left as they are (-1: none).
        """
        rejected: list[Rejection] = []
        for position, candidate in enumerate(self.candidates):
            if 0 <= before <= candidate.step:
                continue
            try:
                step = self.verify(candidate.path)
            except BadCheckpoint as bad:
                with contextlib.suppress(OSError):  # it is passed over again next time
                    self._quarantine(candidate.path)
                rejected.append(Rejection(candidate.path, str(bad)))
                continue
            except OSError as trouble:
                rejected.append(Rejection(candidate.path, f"it cannot be read: {trouble}"))
                continue
            kept = self.kept
            if (rejected or self.trouble) and before < 0:
                kept = self._relist(position)
            return Found(replace(candidate, step=step), kept, tuple(rejected), True, "")
        error = self._nothing_good(rejected) if self.exists else ""
        return Found(None, self.kept if before >= 0 else (), tuple(rejected), self.exists, error)

    def verify(self, path: str) -> int:
        """The step of a checkpoint that is whole; BadCheckpoint says why one is not; OSError passes through."""
        manifest = self.manifest_of(path)
        if not self.is_there(path):
            raise BadCheckpoint("its files are gone")
        if manifest is None:
            try:
                step = files.read_tensors(path)
            except OSError as error:
                raise BadCheckpoint(str(error.strerror)) from error
            return step_in_name(path) if step is None else step
        for name, expected in manifest.files.items():
            try:
                found = files.sum_of(files.join(files.directory_of(path), name))
            except FileNotFoundError:
                raise BadCheckpoint(f"{name} is missing") from None
            if found.size != expected.size:
                raise BadCheckpoint(f"{name} has {found.size} bytes; its manifest lists {expected.size}")
            if found != expected:
                raise BadCheckpoint(f"{name} does not match its checksum")
        return manifest.step

    def _quarantine(self, path: str) -> None:
        name, number = files.name_of(path), 1
        while (target := f"{name}.rejected" + (f".{number}" if number > 1 else "")) in self.names:
            number += 1
        aside = files.join(self.directory, target)
        moving = self.files_of(path)
        if moving:
            files.make_dirs(aside)
        for file in moving:
            files.move(files.join(self.directory, file), files.join(aside, file))

    def _relist(self, position: int) -> tuple[str, ...]:
        good = self.candidates[position]
        older = [c for c in self.candidates[position + 1 :] if self.is_there(c.path)]
        older = [c for c in older if c.listed] if good.listed and not self.trouble else older
        older = older[: self.plan.max_to_keep - 1] if self.plan.max_to_keep > 0 else []
        paths = (*(c.path for c in reversed(older)), good.path)
        with contextlib.suppress(OSError):  # a place that cannot be written: the same is found next time
            self.write_state(paths)
        return paths

    def write_state(self, paths: tuple[str, ...]) -> None:
        """The `checkpoint` file, listing names relative to itself, as TensorFlow does for such paths."""
        prefix = self.directory + "/"
        files.replace(self.state_url, state_of_names([path.removeprefix(prefix) for path in paths]))

    def _nothing_good(self, rejected: list[Rejection]) -> str:
        lines = [f"{self.directory} holds checkpoints, and none of them can be restored:"]
        lines += [f"  {self.trouble}"] if self.trouble else []
        lines += [f"  {rejection.path}: {rejection.why}" for rejection in rejected]
        lines.append(
            f"Put a good checkpoint there and name it in {self.plan.latest_filename}; or, to begin again from step 0, "
            f"move {self.state_url} and {self.plan.save_path}* away."
        )
        return "\n".join(lines)
