"""Pen of a commit: changes in a directory that nobody can make any more once another service has taken over.

Used by commit.py.  No look at a lease, however late, keeps a process from being stopped right behind it, and from going on with its next
call after minutes, when a service on another machine has saved what is newer.  So every such call renames a file out of the commit's
staging directory, or into it.  Who takes over removes that directory first, for good, before it looks at anything else.  From then on
these renames find no source or no target, on every filesystem whose renames are atomic, on that of another machine as well.
"""

from __future__ import annotations

from pathlib import Path

from procsv.base.system import disk
from procsv.services.checkpoint.store.intent import INTENT

AWAY, DRAFT = ".away.", ".draft."
MODE = 0o644


class Fenced(OSError):
    """Another service has carried this commit out, or has undone it: nothing more of it is ours to do, or to undo."""


class Pen:
    """The staging directory, with the intent in it.  OSError passes through all of these."""

    def __init__(self, staging: Path) -> None:
        self._staging, self._has_taken = staging, False

    def place(self, name: str, target: Path) -> None:
        """Moves a staged file into place; nothing if it is there by now, from before a kill."""
        try:
            disk.rename(self._staging / name, target)
        except FileNotFoundError:
            self.check()

    def put(self, target: Path, data: bytes) -> None:
        """Puts `data` at `target`, as replace_file does.  Killed in between: the old file stands whole, and the draft goes with the rest."""
        draft = self._staging / f"{DRAFT}{target.name}"
        try:
            disk.write_file(draft, (data,), MODE, durable=True, replace=True)
            disk.rename(draft, target)
        except FileNotFoundError:
            self.check()
            if not target.exists():  # it is the directory that is gone
                raise
        disk.fsync_path(target.parent)

    def take_away(self, path: Path) -> None:
        """Removes a file, if it is there.  Its room is free once the staging directory is removed."""
        try:
            disk.rename(path, self._staging / f"{AWAY}{path.name}")
            self._has_taken = True
        except FileNotFoundError:
            self.check()
        except OSError:  # it lies on another filesystem, or this one has no room for a name
            self.check()
            disk.unlink_if_there(path)

    def settle(self) -> None:
        """No loss of power brings back what was taken away, once the directory that it lay in is synced as well."""
        if self._has_taken:
            self._has_taken = False
            disk.fsync_path(self._staging)

    def check(self) -> None:
        """Fenced if the commit is not ours any more."""
        if not (self._staging / INTENT).exists():
            raise Fenced(f"{self._staging} was taken over: another run saves there now")
