"""Change files by renames that have no effect once another machine has taken over the directory.

A commit uses it (services/checkpoint/store/commit.py), and so does the holder of a logdir
(base/run/lease.py).  Checking a lease before each change is not enough: a process can be stopped
right after the check, and go on minutes later, when another machine has the logdir.

So each change renames a file out of the fence's own directory, or into it.  A machine that takes
over removes that directory before it relies on anything that it finds.  From then on these renames
lack their source or target.  This works on every filesystem with atomic renames, including network
filesystems.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from procsv.base.system import disk

AWAY, DRAFT = ".away.", ".draft."
MODE = 0o644


class Fenced(OSError):
    """Another process has taken over; we must not continue or undo anything."""


class FencedRename:
    """Changes files through a fence's directory.  OSError passes through all methods."""

    def __init__(self, home: Path, mark: str = "") -> None:
        """`home`: the fence's directory.  `mark`: a file in it that exists while the fence is ours.

        If `mark` is "", `home` itself exists while the fence is ours.
        """
        self.home, self._mark, self._has_taken = home, mark, False

    def place(self, name: str, target: Path) -> None:
        """Moves a file from the fence's directory into place.

        Does nothing if an earlier process moved the file before it was killed.
        """
        try:
            disk.rename(self.home / name, target)
        except FileNotFoundError:
            self.check_fence()

    def put(self, target: Path, data: bytes | Iterable[bytes], durable: bool = True, mode: int = MODE) -> None:
        """Puts `data` at `target`, as replace_file does.

        A kill before the rename leaves the old file whole, and a draft that is removed with the
        directory.
        """
        draft = self.home / f"{DRAFT}{target.name}"
        try:
            disk.write_file(draft, (data,) if isinstance(data, bytes) else data, mode, durable=durable, replace=True)
            disk.rename(draft, target)
        except FileNotFoundError:
            self.check_fence()
            if not target.exists():  # the target's directory is gone
                raise
        if durable:
            disk.fsync_path(target.parent)

    def remove(self, path: Path) -> None:
        """Removes a file or a directory, if it exists, by renaming it into the fence's directory.

        Its space becomes free when that directory is removed.  A file that cannot be renamed is
        deleted in place, right after a check of the fence.
        """
        try:
            disk.rename(path, self.home / f"{AWAY}{path.name}")
            self._has_taken = True
        except FileNotFoundError:
            self.check_fence()
        except OSError:  # it is on another filesystem, or this one has no room for a name
            self.check_fence()
            disk.unlink_if_there(path)

    def flush_removals(self) -> None:
        """Syncs removals, so that no power failure undoes them.

        The caller must also sync the directory that the files were in.
        """
        if self._has_taken:
            self._has_taken = False
            disk.fsync_path(self.home)

    def check_fence(self) -> None:
        """Raises Fenced if the fence is no longer ours."""
        if not (self.home / self._mark).exists():
            raise Fenced(f"{self.home} was taken over: another run saves there now")
