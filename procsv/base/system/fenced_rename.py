"""Change files by renames that do nothing any more once another machine has taken over the directory.

Used by a commit (services/checkpoint/store/commit.py), and by who holds a logdir (base/run/lease.py).  No look at a lease, however late, keeps
a process from being stopped right behind it, and from going on with its next call after minutes, when a process on another machine has
the logdir.  So every such call renames a file out of the fence's own directory, or into it.  Who takes over removes that directory, for
good, before it relies on anything that it finds.  From then on these renames find no source or no target, on every filesystem whose
renames are atomic, on that of another machine as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from procsv.base.system import disk

AWAY, DRAFT = ".away.", ".draft."
MODE = 0o644


class Fenced(OSError):
    """Another one has taken over: nothing more of it is ours to do, or to undo."""


class FencedRename:
    """OSError passes through all of these."""

    def __init__(self, home: Path, mark: str = "") -> None:
        """`home`: its directory; `mark`: what lies in it as long as it is ours, if that is not the directory alone."""
        self.home, self._mark, self._has_taken = home, mark, False

    def place(self, name: str, target: Path) -> None:
        """Moves a file of the fence's directory into place; nothing if it is there by now, from before a kill."""
        try:
            disk.rename(self.home / name, target)
        except FileNotFoundError:
            self.check_fence()

    def put(self, target: Path, data: bytes | Iterable[bytes], durable: bool = True, mode: int = MODE) -> None:
        """Puts `data` at `target`, as replace_file does.  Killed in between: the old file stands whole, and the draft goes with the rest."""
        draft = self.home / f"{DRAFT}{target.name}"
        try:
            disk.write_file(draft, (data,) if isinstance(data, bytes) else data, mode, durable=durable, replace=True)
            disk.rename(draft, target)
        except FileNotFoundError:
            self.check_fence()
            if not target.exists():  # it is the directory that is gone
                raise
        if durable:
            disk.fsync_path(target.parent)

    def take_away(self, path: Path) -> None:
        """Removes a file, if it is there.  Its room is free once the fence's directory is removed."""
        try:
            disk.rename(path, self.home / f"{AWAY}{path.name}")
            self._has_taken = True
        except FileNotFoundError:
            self.check_fence()
        except OSError:  # it lies on another filesystem, or this one has no room for a name
            self.check_fence()
            disk.unlink_if_there(path)

    def flush_removals(self) -> None:
        """No loss of power brings back what was taken away, once the directory that it lay in is synced as well."""
        if self._has_taken:
            self._has_taken = False
            disk.fsync_path(self.home)

    def check_fence(self) -> None:
        """Fenced if it is not ours any more."""
        if not (self.home / self._mark).exists():
            raise Fenced(f"{self.home} was taken over: another run saves there now")
