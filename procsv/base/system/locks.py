"""Locks between processes: flock on a file that says who holds it, or on a directory.

Called by whoever starts a run, a service or a trainer.  A lock dies with its last holder, so a stale file
is no lock; the file itself is removed on a clean release.  Never waits without a deadline.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from procsv.base.encoding import decode_json, encode_json
from procsv.base.system import stale
from procsv.base.system.failpoints import declare, failpoint

declare("locks.directory")

YIELDS_MAX = 100  # tries at once while somebody looks, which takes microseconds; then that one waits for a core:
PAUSES_MAX, PAUSE_S = 2000, 0.001  # tries with a pause before each; more means that it was stopped in the middle

_HOLDER_BYTES_MAX = 2**16


class Holder(msgspec.Struct, frozen=True):
    """Who holds a lock, for the error that another gets."""

    pid: Annotated[int, msgspec.Meta(ge=0, le=2**22)]
    what: str
    since: Annotated[float, msgspec.Meta(ge=0, le=1e11)] = 0.0  # Unix seconds
    is_brief: bool = False  # it lets go by itself, after a few files at most


def try_lock(fd: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Locks `fd` if nobody is in the way; OSError on a filesystem that has no locks."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_lock_free(fd: int) -> bool:
    """Whether nobody holds the lock of this file exclusively; `fd` is our own, and holds none."""
    is_free = try_lock(fd, fcntl.LOCK_SH)  # shared: several may look at the same instant
    if is_free:
        fcntl.flock(fd, fcntl.LOCK_UN)
    return is_free


def _lock_exclusively(fd: int) -> bool:
    """Locks `fd` exclusively; False if somebody holds it so.  Who only looks (`is_held`) is in the way for an instant."""
    pause = threading.Event()
    for tries in range(YIELDS_MAX + PAUSES_MAX):
        if try_lock(fd, fcntl.LOCK_EX):
            return True
        if not try_lock(fd, fcntl.LOCK_SH):
            return False
        fcntl.flock(fd, fcntl.LOCK_UN)
        if tries < YIELDS_MAX:
            os.sched_yield()
        else:
            pause.wait(PAUSE_S)
    return False


class FileLock:
    """One exclusive lock.  It is held for as long as any child has its descriptor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1

    def try_acquire(self, what: str, wall_s: float, pid: int = 0, *, is_brief: bool = False) -> bool:
        """Takes the lock or says False at once.  FileNotFoundError if its directory is gone.

        `pid`: for whom it is held, where that is not us.  `is_brief`: whoever wants it may wait for us.
        """
        if not self._acquire():
            return False
        self._write_holder(encode_json(Holder(pid or os.getpid(), what, wall_s, is_brief)))
        return True

    def _acquire(self) -> bool:
        while True:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not _lock_exclusively(self.fd):
                self.release_lock()
                return False
            if self.is_in_place():  # the holder before us unlinks the file as it lets go
                return True
            self.release_lock()

    def _write_holder(self, holder: bytes) -> None:
        """Says who holds the lock; on a full disk nobody, and it is held all the same."""
        with contextlib.suppress(OSError):
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, holder, 0)

    def is_in_place(self) -> bool:
        """Whether the file that we have locked is still what lies at its path."""
        return stale.lies_at(self.fd, self.path)

    def relock(self) -> bool:
        """Locks what lies at the path now, where the file that we hold was removed or replaced.

        True if the lock is in place; else it is as it was: what lies there is held by another.  OSError if there can be no
        file.  The file that is gone stays locked by those who have inherited it.
        """
        if self.is_in_place():
            return True
        held = FileLock(self.path)
        data = os.pread(self.fd, _HOLDER_BYTES_MAX, 0)
        if not held._acquire():
            return False
        held._write_holder(data)
        os.close(self.fd)
        self.fd = held.fd
        return True

    def holder(self) -> Holder | None:
        """Who wrote the file last; only meaningful while somebody holds the lock."""
        try:
            return decode_json(self.path.read_bytes(), Holder)
        except (OSError, msgspec.DecodeError):
            return None

    def wake(self) -> None:
        """Has whoever holds the lock go on (SIGCONT): one that is stopped would never let go.  Says nothing to any other.

        For locks that are held by the process that has taken them, and not by heirs of it.
        """
        holder = self.holder()
        if holder is None:
            return
        try:
            pidfd = os.pidfd_open(holder.pid)
        except OSError:
            return
        try:
            if self.is_held():  # still: so the pid is still the holder's
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        finally:
            os.close(pidfd)

    def is_held(self) -> bool:
        """Whether anybody holds the lock now."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not try_lock(fd, fcntl.LOCK_SH)  # shared: several may look at the same instant
        finally:
            os.close(fd)

    def release_lock(self) -> None:
        """Closes our descriptor; children that inherited it keep the lock.  The file stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def release(self) -> None:
        """Removes the file and lets go.  Killed in between: a stale file, which is no lock."""
        if self.fd >= 0:
            self.path.unlink(missing_ok=True)
            self.release_lock()


class DirectoryLock:
    """A lock on a directory itself, which leaves no file that could be removed, and goes with it wherever it is moved.

    It is held for as long as any heir has its descriptor.  On a network filesystem it says nothing to another machine.
    """

    def __init__(self, path: Path, fd: int = -1, *, is_firm: bool = True, is_shared: bool = False) -> None:
        """`fd`: as it was inherited, or sent by who has the lock.

        `is_firm`: the filesystem has locks, as far as is known; else whoever has the directory open counts as a holder.
        `is_shared`: others may share it, and only `held_alone` is kept out.
        """
        self.path, self.fd, self.is_firm, self._is_shared = path, fd, is_firm, is_shared

    def try_acquire(self) -> bool:
        """Takes the lock, or says False at once; True if we have it.  FileNotFoundError if the directory is gone."""
        while not self.is_in_place():
            self.release_lock()
            self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                failpoint("locks.directory")
                lock = partial(try_lock, kind=fcntl.LOCK_SH) if self._is_shared else _lock_exclusively
                is_ours, self.is_firm = lock(self.fd), True
            except OSError:
                self.is_firm = False
                is_ours = self._is_shared or not self.holders()
            if not is_ours:
                self.release_lock()
                return False
        return True

    def relock(self) -> None:
        """Locks what lies at the path by now, where that is another directory, or ours is stale; who has inherited ours keeps the
        old lock.
        """
        with contextlib.suppress(OSError):  # nothing lies there, or it cannot be looked at now: looked at again
            if self.is_in_place():
                return
            new = DirectoryLock(self.path, is_shared=self._is_shared)
            try:
                if new.try_acquire():
                    self.fd, new.fd, self.is_firm = new.fd, self.fd, new.is_firm
            finally:
                new.release_lock()

    def is_in_place(self) -> bool:
        """Whether the directory that we have locked is still what lies at its path."""
        return self.fd >= 0 and stale.lies_at(self.fd, self.path)

    def is_deleted(self) -> bool:
        """Whether somebody has deleted the directory that we have locked; one that was moved or unmounted is none of those."""
        there = stale.stat_open(self.fd) if self.fd >= 0 else None  # of one that is stale nobody can tell
        return there is not None and there.st_nlink == 0

    def is_alone(self) -> bool:
        """Whether nobody shares the lock that we hold; True where the filesystem has no locks."""
        is_alone = not self.is_firm or try_lock(self.fd)
        if self.is_firm:
            fcntl.flock(self.fd, fcntl.LOCK_SH)  # shared again, or still
        return is_alone

    def holders(self) -> list[int]:
        """The other processes that hold it, as far as we may look: by a lock on a descriptor, or where there are none by that."""
        path, found = os.path.realpath(self.path), []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fds = [fd for fd in (process / "fd").iterdir() if _is_open_at(fd, path)]
                if any(not self.is_firm or _is_locked(process, fd.name) for fd in fds):
                    found.append(int(process.name))
        return [pid for pid in found if pid != os.getpid()]

    def release_lock(self) -> None:
        """Closes our descriptor; those who have inherited it keep the lock."""
        if self.fd >= 0:
            stale.close(self.fd)
            self.fd = -1


@contextlib.contextmanager
def held_alone(directory: Path) -> Iterator[bool]:
    """Locks a directory for the block; False if anybody holds it, shared or not.  OSError where the filesystem has no locks."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield try_lock(fd)
    finally:
        os.close(fd)


def _is_open_at(fd: Path, path: str) -> bool:
    with contextlib.suppress(OSError):  # closed meanwhile
        return os.readlink(fd) == path  # noqa: PTH115
    return False


def _is_locked(process: Path, fd: str) -> bool:
    with contextlib.suppress(OSError):
        return "FLOCK" in (process / "fdinfo" / fd).read_text()
    return False
