"""How a checkpoint comes into place on the simulated disk: services/checkpoint/store/commit.py, operation by operation.

Used by store.py.  Redo log (the intent), setting aside, renames, directory fsync, manifest, `checkpoint` file, deletions,
and recovery after a kill between any two of them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from procsv.base.run.manifest import Manifest
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


@dataclass(slots=True)
class SimWorkshop:
    """commit.Workshop."""

    disk: SimDisk

    def commit(self, staging: str, intent: Intent) -> list[str]:
        """Puts a complete staging directory into place; the old checkpoints that could not be deleted."""
        try:
            self.disk.fsync_dir(staging)
            self.disk.replace(f"{staging}/intent", intent)
            self.disk.fsync_dir(STAGING.rstrip("/"))
        except OSError:
            self.disk.remove_all(f"{staging}/")
            raise
        try:
            self._carry_out(staging, intent)
        except OSError:
            self._undo(staging, intent)
            raise
        undeleted = self._delete_old(intent)
        self._tidy(staging)
        return undeleted

    def manifest(self, path: str) -> Manifest | None:
        content = self.disk.read(manifest_at(path))
        return content if isinstance(content, Manifest) else None

    def _carry_out(self, staging: str, intent: Intent) -> None:
        kept = f"{REPLACED}{intent.manifest.sequence}/"
        if not self.disk.under(kept):
            for old in [*files_of(intent.path), manifest_at(intent.path)]:
                if old in self.disk.files:
                    self.disk.link(old, kept + base_name(old))
            self.disk.fsync_dir(kept.rstrip("/"))
        for name in files_of(intent.path):
            with contextlib.suppress(FileNotFoundError):
                self.disk.rename(f"{staging}/{base_name(name)}", name)
        self.disk.fsync_dir("/logdir")
        self.disk.replace(manifest_at(intent.path), intent.manifest)
        self.disk.replace(STATE_FILE, intent.listed)

    def _delete_old(self, intent: Intent) -> list[str]:
        undeleted = []
        for path in dict.fromkeys(p for p in intent.delete if p not in intent.listed):
            try:
                self.delete(path)
            except OSError:
                undeleted.append(path)
        if intent.delete:
            with contextlib.suppress(OSError):
                self.disk.fsync_dir("/logdir")
        return undeleted

    def delete(self, path: str) -> None:
        for name in (files_of(path)[1], files_of(path)[0], manifest_at(path)):
            self.disk.unlink(name)

    def _undo(self, staging: str, intent: Intent) -> None:
        kept = f"{REPLACED}{intent.manifest.sequence}/"
        is_placed = bool(self.disk.under(kept)) or not intent.replaces
        for name in intent.manifest.files if is_placed else ():
            if f"{staging}/{name}" not in self.disk.files:
                self.disk.unlink(f"/logdir/{name}")
        there = self.manifest(intent.path) if is_placed else None
        if there is not None and there.sequence == intent.manifest.sequence:
            self.disk.unlink(manifest_at(intent.path))
        for old in self.disk.under(kept):
            self.disk.rename(old, f"/logdir/{base_name(old)}")
        self.disk.fsync_dir("/logdir")
        if self.disk.read(STATE_FILE) != intent.state_before:
            if intent.state_before is None:
                self.disk.unlink(STATE_FILE)
            else:
                self.disk.replace(STATE_FILE, intent.state_before)
        self._tidy(staging)

    def _tidy(self, staging: str) -> None:
        self.disk.remove_all(f"{REPLACED}{base_name(staging)}/")
        with contextlib.suppress(OSError):
            self.disk.unlink(f"{staging}/intent")
        self.disk.remove_all(f"{staging}/")

    def is_empty(self) -> bool:
        return not self.disk.under(STAGING) and not self.disk.under(REPLACED)

    def recover(self) -> None:
        """Ends what a kill has interrupted."""
        numbers = {int(name[len(STAGING) :].partition("/")[0]) for name in self.disk.under(STAGING)}
        for number in sorted(numbers):
            staging = f"{STAGING}{number}"
            intent = self.disk.read(f"{staging}/intent")
            if isinstance(intent, Intent) and self._is_newest(intent):
                if holds(self.disk.files, intent.manifest, intent.path, staging):
                    self._carry_out(staging, intent)
                    self._delete_old(intent)
                elif not self._was_over(staging, intent):
                    self._undo(staging, intent)
            self._tidy(staging)
        self.disk.remove_all(REPLACED)

    def _was_over(self, staging: str, intent: Intent) -> bool:
        there, names = self.manifest(intent.path), list(intent.manifest.files)
        return (
            not self.disk.under(f"{REPLACED}{intent.manifest.sequence}/")
            and not any(f"{staging}/{name}" in self.disk.files for name in names)
            and all(f"/logdir/{name}" in self.disk.files for name in names)
            and there is not None
            and there.sequence == intent.manifest.sequence
        )

    def _is_newest(self, intent: Intent) -> bool:
        there = self.manifest(intent.path)
        return there is None or there.sequence <= intent.manifest.sequence
