"""Provide locks between processes, on a file or on a directory, by flock.

A lock file records who holds the lock.  Every process that starts a run, a service or a trainer
uses this module.  The kernel releases a lock when the last process that holds it ends, so a
left-over file does not mean that the lock is held.  `FileLock.release` removes the file.  Nothing
here waits for a holder; the longest wait, about two seconds, is for processes that only check the
lock or share it.
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

# A process that only checks a lock holds it for microseconds, so first try again immediately.  If the lock is still not
# free, that process is probably waiting for a CPU: pause before each further try.  If the lock is not free after all
# pauses, either the process was stopped during the check, or other processes share the lock.
YIELDS_MAX = 100
PAUSES_MAX, PAUSE_S = 2000, 0.001

_HOLDER_BYTES_MAX = 2**16


class Holder(msgspec.Struct, frozen=True):
    """Who holds a lock: for the error message of a process that wants it."""

    pid: Annotated[int, msgspec.Meta(ge=0, le=2**22)]
    what: str
    since: Annotated[float, msgspec.Meta(ge=0, le=1e11)] = 0.0  # Unix seconds
    is_brief: bool = False  # it will release the lock soon, after changing a few files at most


def try_lock(fd: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Locks `fd` if the lock is free; returns whether it did.

    OSError on a filesystem without locks.
    """
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_lock_free(fd: int) -> bool:
    """Whether no process holds this file's lock exclusively.

    `fd`: our own descriptor, which holds no lock.
    """
    is_free = try_lock(fd, fcntl.LOCK_SH)  # shared, so that several processes may check at the same time
    if is_free:
        fcntl.flock(fd, fcntl.LOCK_UN)
    return is_free


def _lock_exclusively(fd: int) -> bool:
    """Locks `fd` exclusively.

    Returns False at once if another process holds the lock exclusively.  If processes only share
    the lock, tries again for about two seconds, and then returns False.  A process that only checks
    the lock (`is_held`) shares it for an instant.
    """
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
    """One exclusive lock on a file.

    A process holds the lock as long as it, or a child that inherited the descriptor, has it open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1

    def try_acquire(self, what: str, wall_s: float, pid: int = 0, *, is_brief: bool = False) -> bool:
        """Takes the lock; returns whether it did.

        Returns False at once if another process holds the lock, and after about two seconds if other
        processes keep checking it.  FileNotFoundError if the directory is gone.  OSError on a
        filesystem without locks.

        `pid`: the process to name as the holder; 0 for this one.  `is_brief`: we will release the
        lock soon, so other processes may wait for it.
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
            if self.is_in_place():  # the previous holder unlinks the file as it releases the lock
                return True
            self.release_lock()

    def _write_holder(self, holder: bytes) -> None:
        """Writes to the file who holds the lock.

        If the disk is full, the file names no holder, but the lock is held.
        """
        with contextlib.suppress(OSError):
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, holder, 0)

    def is_in_place(self) -> bool:
        """Whether the file that we have locked is still at its path."""
        return stale.lies_at(self.fd, self.path)

    def relock(self) -> bool:
        """Locks the file that is now at the path, if ours was removed or replaced.

        Returns True if we now hold the lock of the file at the path.  Returns False, and changes
        nothing, if another process holds it.  OSError if no file can be created.  Processes that
        have inherited the old file keep the old file locked.
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
        """Returns the holder that the file names; None if it names none.

        This is only meaningful while some process holds the lock.
        """
        try:
            return decode_json(self.path.read_bytes(), Holder)
        except (OSError, msgspec.DecodeError):
            return None

    def wake(self) -> None:
        """Sends SIGCONT to the holder, because a stopped process never releases the lock.

        Only for a lock that one process has taken for itself, and has not passed on to a child.
        """
        holder = self.holder()
        if holder is None:
            return
        try:
            pidfd = os.pidfd_open(holder.pid)
        except OSError:
            return
        try:
            # The lock is still held, so the pid is still the holder's.  There is one harmless exception: the holder has
            # ended, its pid was reused, and a third process has the lock.  Then an unrelated process gets SIGCONT.
            if self.is_held():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        finally:
            os.close(pidfd)

    def is_held(self) -> bool:
        """Whether any process holds the lock now."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not try_lock(fd, fcntl.LOCK_SH)  # shared, so that several processes may check at the same time
        finally:
            os.close(fd)

    def release_lock(self) -> None:
        """Closes our descriptor; children that inherited it keep the lock.  The file stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def release(self) -> None:
        """Removes the file and releases the lock."""
        if self.fd >= 0:
            self.path.unlink(missing_ok=True)
            self.release_lock()


class DirectoryLock:
    """A lock on a directory itself, which needs no file and moves with the directory.

    It is held as long as this process, or a process that inherited the descriptor, has it open.  On
    a network filesystem another machine may not see the lock.
    """

    def __init__(self, path: Path, fd: int = -1, *, has_flock: bool = True, is_shared: bool = False) -> None:
        """`fd`: a descriptor that we inherited, or that the holder has sent.

        `has_flock`: the filesystem seems to have locks.  If it has none, every process that has the
        directory open counts as a holder.  `is_shared`: take a shared lock, which other processes
        can share.  It keeps out only a process that wants an exclusive lock, as `held_alone` does.
        """
        self.path, self.fd, self.has_flock, self._is_shared = path, fd, has_flock, is_shared

    def try_acquire(self) -> bool:
        """Takes the lock unless we have it; returns whether we have it now.

        Returns False at once if another process holds the lock exclusively, and, if we want it
        exclusively, after about two seconds if other processes share it.  On a filesystem without
        locks, an exclusive lock is refused if another process has the directory open (`holders`), and
        a shared one never is.  FileNotFoundError if the directory is gone.
        """
        while not self.is_in_place():
            self.release_lock()
            self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                failpoint("locks.directory")
                lock = partial(try_lock, kind=fcntl.LOCK_SH) if self._is_shared else _lock_exclusively
                is_ours, self.has_flock = lock(self.fd), True
            except OSError:
                self.has_flock = False
                is_ours = self._is_shared or not self.holders()
            if not is_ours:
                self.release_lock()
                return False
        return True

    def is_held(self) -> bool:
        """Whether a process on this machine, in any container, holds the lock exclusively.

        OSError if that is unknown.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return not is_lock_free(fd)
        finally:
            os.close(fd)

    def relock(self) -> None:
        """Locks the directory that is now at the path.

        Does nothing if we have already locked that directory and our descriptor is not stale.
        Processes that have inherited our lock keep the lock on the old directory.
        """
        with contextlib.suppress(OSError):  # there is no directory, or it cannot be checked now; the caller tries again
            if self.is_in_place():
                return
            new = DirectoryLock(self.path, is_shared=self._is_shared)
            try:
                if new.try_acquire():
                    self.fd, new.fd, self.has_flock = new.fd, self.fd, new.has_flock
            finally:
                new.release_lock()

    def is_in_place(self) -> bool:
        """Whether the directory that we have locked is still at its path."""
        return self.fd >= 0 and stale.lies_at(self.fd, self.path)

    def is_deleted(self) -> bool:
        """Whether the directory that we have locked was deleted.

        False if it was only moved or unmounted.
        """
        there = stale.stat_open(self.fd) if self.fd >= 0 else None  # unknown if the handle is stale
        return there is not None and there.st_nlink == 0

    def is_alone(self) -> bool:
        """Whether no other process shares our lock; True if the filesystem has no locks."""
        is_alone = not self.has_flock or try_lock(self.fd)
        if self.has_flock:
            fcntl.flock(self.fd, fcntl.LOCK_SH)  # back to shared, if `try_lock` made it exclusive
        return is_alone

    def holders(self) -> list[int]:
        """Returns the pids of the other holders; leaves out those that we may not inspect.

        A holder has a lock on a descriptor of the directory.  If the filesystem has no locks, every
        process with a descriptor counts.
        """
        path, found = os.path.realpath(self.path), []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fds = [fd for fd in (process / "fd").iterdir() if _is_open_at(fd, path)]
                if any(not self.has_flock or _is_locked(process, fd.name) for fd in fds):
                    found.append(int(process.name))
        return [pid for pid in found if pid != os.getpid()]

    def release_lock(self) -> None:
        """Closes our descriptor; processes that have inherited it keep the lock."""
        if self.fd >= 0:
            stale.close(self.fd)
            self.fd = -1


@contextlib.contextmanager
def held_alone(directory: Path) -> Iterator[bool]:
    """Locks a directory for the block; yields False if any process holds it, shared or not.

    OSError if the filesystem has no locks.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield try_lock(fd)
    finally:
        os.close(fd)


def _is_open_at(fd: Path, path: str) -> bool:
    with contextlib.suppress(OSError):  # the descriptor was closed
        return os.readlink(fd) == path  # noqa: PTH115
    return False


def _is_locked(process: Path, fd: str) -> bool:
    with contextlib.suppress(OSError):
        return "FLOCK" in (process / "fdinfo" / fd).read_text()
    return False
