"""The logdir's disk: what is on it, what a power loss would leave, and its failures.

A name appears at once and survives a power loss once its directory is synced; bytes survive once
their file is. A power loss keeps a random number of the first unsynced changes and tears files with
unsynced bytes. A rename is one change in both directories. Every change is one operation: a process
can be killed between any two, and any can fail while the disk is in trouble.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from random import Random
from typing import Any


class Killed(BaseException):
    """The process is dead in the middle of this operation: no handler and no clean-up runs."""


TORN = ("torn",)
_WRITES_FAIL = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EROFS": errno.EROFS, "EDQUOT": errno.EDQUOT}


@dataclass(slots=True, eq=False)
class Node:
    """One file's contents: any comparable value."""

    content: Any
    synced: Any = TORN


Names = tuple[tuple[str, Node | None], ...]  # names changed at once; None: the name is gone


@dataclass(slots=True)
class SimDisk:
    rng: Random
    files: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)  # the names that survive a power loss
    trouble: str = ""  # the name of an errno while the disk is in trouble
    trouble_chance: float = 1.0  # the chance of each operation to fail then
    unread: set[str] = field(default_factory=set)  # files whose last read failed
    kill_in: int | None = None  # the active process is killed before its n-th operation from now
    version: int = 0  # rises with every change
    _pending: list[tuple[Names, frozenset[str]]] = field(
        default_factory=list
    )  # changes, oldest first, with their directories

    # -- one operation ---------------------------------------------------------------------------------------
    def operation(self, needs_room: bool) -> None:
        """A point at which a process can be killed and a call can fail."""
        self.version += 1
        if self.kill_in is not None:
            if self.kill_in <= 0:
                raise Killed
            self.kill_in -= 1
        if self.trouble and (needs_room or self.trouble not in ("ENOSPC", "EDQUOT")):
            self.fail()

    def fail(self) -> None:
        """Raise OSError if the disk is in trouble and by chance."""
        if self.trouble and self.rng.random() < self.trouble_chance:
            number = _WRITES_FAIL[self.trouble]
            raise OSError(number, os.strerror(number))

    def _change(self, *names: tuple[str, Node | None]) -> None:
        for path, node in names:
            if node is None:
                self.files.pop(path, None)
            else:
                self.files[path] = node
        self._pending.append((names, frozenset([path.rpartition("/")[0] for path, _ in names])))

    def write(self, path: str, content: Any) -> None:
        """Write a new file without syncing it, or half of it if the disk is full."""
        try:
            self.operation(True)
        except OSError:
            self._change((path, Node(TORN)))
            raise
        self._change((path, Node(content)))

    def fsync(self, path: str) -> None:
        self.operation(False)
        self.files[path].synced = self.files[path].content

    def fsync_dir(self, directory: str) -> None:
        self.operation(False)
        waiting = []
        for names, directories in self._pending:
            if directory in directories:
                self._keep(names)
            else:
                waiting.append((names, directories))
        self._pending = waiting

    def _keep(self, names: Names) -> None:
        for path, node in names:
            if node is None:
                self.durable.pop(path, None)
            else:
                self.durable[path] = node

    def rename(self, source: str, target: str) -> None:
        """Rename. Raises FileNotFoundError if `source` is missing."""
        if source not in self.files:
            raise FileNotFoundError(source)
        self.operation(False)
        self._change((source, None), (target, self.files[source]))

    def link(self, source: str, target: str) -> None:
        self.operation(True)
        self._change((target, self.files[source]))

    def unlink(self, path: str) -> None:
        """Remove the file if it exists."""
        if path in self.files:
            self.operation(False)
            self._change((path, None))

    def replace(self, path: str, content: Any) -> None:
        """Replace the file as ipc.atomic.replace_file does: sync a new file, rename it, sync the directory."""
        new = f"{path}.new"
        try:
            self.write(new, content)
            self.fsync(new)
            self.rename(new, path)
        except OSError:
            self._change((new, None))
            raise
        self.fsync_dir(path.rpartition("/")[0])

    def remove_all(self, prefix: str) -> None:
        """Do shutil.rmtree(ignore_errors=True)."""
        for path in self.under(prefix):
            try:
                self.unlink(path)
            except OSError:
                continue

    # -- reading ---------------------------------------------------------------------------------------------
    def read(self, path: str) -> Any:
        """Return the bytes, or None if there is no such file. Raises OSError while the disk cannot read."""
        if self.trouble == "EIO":
            self.unread.add(path)
            self.fail()
            self.unread.discard(path)
        node = self.files.get(path)
        return None if node is None else node.content

    def under(self, prefix: str) -> list[str]:
        return [path for path in self.files if path.startswith(prefix)]

    # -- faults ----------------------------------------------------------------------------------------------
    def lose_power(self) -> None:
        """Lose what was not synced, except for the first few changes."""
        for names, _ in self._pending[: self.rng.randrange(len(self._pending) + 1)]:
            self._keep(names)
        self._pending.clear()
        for node in self.durable.values():
            node.content = node.synced
        self.files = dict(self.durable)
        self.version += 1

    def corrupt_newest(self, path: str) -> None:
        """Flip bits."""
        node = self.files[path]
        node.content = node.synced = ("spoilt",)
        self.version += 1
