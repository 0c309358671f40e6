"""Commit a checkpoint on the simulated disk as commit.py and fenced_rename.py of
services/checkpoint/store do, call by call.

Used by store.py. It has the redo log (the intent), the copy of what is replaced, renames, directory
fsync, manifest, `checkpoint` file, deletions, and recovery after a kill between any two calls. A
commit can stop between any two steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from procsv.base.run.manifest import Manifest
from procsv.base.system.fenced_rename import Fenced
from tests.simulation.model.checkpoints import (
    REPLACED,
    STAGING,
    STATE_FILE,
    Intent,
    base_name,
    files_of,
    holds,
    manifest_at,
)
from tests.simulation.model.disk import SimDisk

T = TypeVar("T")
Steps = Generator[None, None, T]


def run_through(steps: Steps[T]) -> T:
    """Do all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: T = ended.value
            return result


@dataclass(slots=True)
class SimFencedRename:
    """A fenced_rename.FencedRename."""

    disk: SimDisk
    staging: str

    def check(self) -> None:
        if f"{self.staging}/intent" not in self.disk.files:
            raise Fenced(f"{self.staging} was taken over")

    def place(self, name: str) -> None:
        try:
            self.disk.rename(f"{self.staging}/{base_name(name)}", name)
        except FileNotFoundError:
            self.check()

    def put(self, target: str, content: Any) -> Steps[None]:
        draft = f"{self.staging}/draft.{base_name(target)}"
        self.check()  # nothing can be written in a missing directory
        self.disk.write(draft, content)
        yield
        if draft not in self.disk.files:
            raise Fenced(draft)
        self.disk.fsync(draft)
        yield
        try:
            self.disk.rename(draft, target)
        except FileNotFoundError:
            self.check()
        self.disk.fsync_dir("/logdir")

    def remove(self, path: str) -> None:
        if path not in self.disk.files:
            return
        self.check()
        try:
            self.disk.rename(path, f"{self.staging}/away.{base_name(path)}")
        except OSError:
            self.disk.unlink(path)


@dataclass(slots=True)
class SimStagingArea:
    """A commit.StagingArea."""

    disk: SimDisk

    def commit(self, staging: str, intent: Intent) -> list[str]:
        """Put a complete staging directory into place. Return the old checkpoints that could not be deleted."""
        return run_through(self.commit_in_steps(staging, intent))

    def commit_in_steps(self, staging: str, intent: Intent) -> Steps[list[str]]:
        try:
            if not self.disk.under(f"{staging}/"):
                raise FileNotFoundError(staging)
            self.disk.fsync_dir(staging)
            self.disk.replace(f"{staging}/intent", intent)
            self.disk.fsync_dir(STAGING.rstrip("/"))
        except OSError:
            self.disk.remove_all(f"{staging}/")
            raise
        try:
            yield from self._carry_out(staging, intent)
        except Fenced:
            raise
        except OSError:
            self._undo(staging, intent)
            raise
        undeleted = yield from self._delete_old(staging, intent)
        self._remove_traces(staging)
        return undeleted

    def manifest(self, path: str) -> Manifest | None:
        content = self.disk.read(manifest_at(path))
        return content if isinstance(content, Manifest) else None

    def _carry_out(self, staging: str, intent: Intent) -> Steps[None]:
        kept, fence = f"{REPLACED}{base_name(staging)}/", SimFencedRename(self.disk, staging)
        yield
        if not self.disk.under(kept):
            for old in [*files_of(intent.path), manifest_at(intent.path)]:
                if old in self.disk.files:
                    self.disk.link(old, kept + base_name(old))
            self.disk.fsync_dir(kept.rstrip("/"))
        for name in files_of(intent.path):
            yield
            fence.place(name)
        self.disk.fsync_dir("/logdir")
        yield
        yield from fence.put(manifest_at(intent.path), intent.manifest)
        yield
        yield from fence.put(STATE_FILE, intent.listed)

    def _delete_old(self, staging: str, intent: Intent) -> Steps[list[str]]:
        undeleted, fence = [], SimFencedRename(self.disk, staging)
        for path in dict.fromkeys(p for p in intent.delete if p not in intent.listed):
            try:
                for name in _in_order(path):
                    yield
                    fence.remove(name)
            except Fenced:
                raise
            except OSError:
                undeleted.append(path)
        if intent.delete:
            with contextlib.suppress(OSError):
                self.disk.fsync_dir("/logdir")
        return undeleted

    def delete(self, path: str) -> None:
        for name in _in_order(path):
            self.disk.unlink(name)

    def _undo(self, staging: str, intent: Intent) -> None:
        kept, fence = f"{REPLACED}{base_name(staging)}/", SimFencedRename(self.disk, staging)
        may_be_placed = bool(self.disk.under(kept)) or not intent.replaces
        for name in intent.manifest.files if may_be_placed else ():
            if f"{staging}/{name}" not in self.disk.files:
                fence.remove(f"/logdir/{name}")
        there = self.manifest(intent.path) if may_be_placed else None
        if there is not None and there.sequence == intent.manifest.sequence:
            fence.remove(manifest_at(intent.path))
        for old in self.disk.under(kept):
            fence.remove(f"/logdir/{base_name(old)}")
            self.disk.link(old, f"/logdir/{base_name(old)}")
        self.disk.fsync_dir("/logdir")
        if self.disk.read(STATE_FILE) != intent.state_before:
            if intent.state_before is None:
                fence.remove(STATE_FILE)
            else:
                run_through(fence.put(STATE_FILE, intent.state_before))
        self._remove_traces(staging)

    def _remove_traces(self, staging: str) -> None:
        self.disk.remove_all(f"{REPLACED}{base_name(staging)}/")
        with contextlib.suppress(OSError):
            self.disk.unlink(f"{staging}/intent")
        self.disk.remove_all(f"{staging}/")

    def is_empty(self) -> bool:
        return not self.disk.under(STAGING) and not self.disk.under(REPLACED)

    def recover(self) -> None:
        """Finish what a kill has interrupted."""
        found = {name[len(STAGING) :].partition("/")[0] for name in self.disk.under(STAGING)}
        for name in sorted(found, key=lambda name: (int(name.partition(".")[0]), name)):
            staging = f"{STAGING}{name}"
            intent = self.disk.read(f"{staging}/intent")
            if isinstance(intent, Intent) and self._is_newest(intent):
                if holds(self.disk.files, intent.manifest, intent.path, staging):
                    run_through(self._carry_out(staging, replace(intent, listed=self._list_to_write(intent))))
                    run_through(self._delete_old(staging, intent))
                elif not self._had_completed(staging, intent):
                    self._undo(staging, intent)
            self._remove_traces(staging)
        self.disk.remove_all(REPLACED)

    def _list_to_write(self, intent: Intent) -> tuple[str, ...]:
        """See commit._list_to_write: a power loss may bring back a finished intent, and the newer latest stays."""
        now = self.disk.read(STATE_FILE)
        if not isinstance(now, tuple) or now == intent.state_before or now[-1] in intent.listed:
            return intent.listed
        there = [path for path in now[:-1] if path not in intent.delete]
        return (*there, *(path for path in intent.listed if path not in there), now[-1])

    def _had_completed(self, staging: str, intent: Intent) -> bool:
        there, names = self.manifest(intent.path), list(intent.manifest.files)
        return (
            not self.disk.under(f"{REPLACED}{base_name(staging)}/")
            and not any(f"{staging}/{name}" in self.disk.files for name in names)
            and all(f"/logdir/{name}" in self.disk.files for name in names)
            and there is not None
            and there.sequence == intent.manifest.sequence
        )

    def _is_newest(self, intent: Intent) -> bool:
        there = self.manifest(intent.path)
        return there is None or there.sequence <= intent.manifest.sequence


def _in_order(path: str) -> tuple[str, ...]:
    """Return a checkpoint's files in the order of deletion."""
    return files_of(path)[1], files_of(path)[0], manifest_at(path)
