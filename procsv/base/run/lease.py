"""Keep the lease of a logdir, which shows other machines who writes there.

A lock works on one machine.  On a network filesystem, another machine may not see it, or may get no
lock at all.  So the holder of a logdir also keeps a small file in it, the lease, and rewrites it
every few seconds.  A launch that finds another's lease watches whether it changes, so the clocks of
two machines are never compared.  A process that finds its own lease replaced stops writing there.

Checking the lease is not enough, because a process may be stopped right after the check.  So the
holder has a fence (base/system/fenced_rename.py): the directory `procsv/.pen.<run>`.  It replaces
and removes the lease only by renames out of that directory or into it.  A launch that takes the
logdir removes the fences of all others, and from then on their renames fail.  The fence protects
other files in the same way: run.json, the metrics, and, in a logdir that a run has adopted, the
pointer to the run (adoption.py).

In this file, as everywhere in the code, `run` is the id of one launch.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import Annotated

import msgspec

from procsv.base.encoding import decode_sealed, encode_json, seal
from procsv.base.run.paths import RunPaths
from procsv.base.run.records import record_mode
from procsv.base.run.run_file import read_run
from procsv.base.system import disk, stale
from procsv.base.system.data_file import read_data
from procsv.base.system.failpoints import declare, failpoint
from procsv.base.system.fenced_rename import AWAY, Fenced, FencedRename
from procsv.base.system.locks import DirectoryLock
from procsv.base.system.processes import ProcessIdentity, boot_id

declare("lease.before_replacing")

RENEW_S = 5.0  # how often the holder rewrites the lease
LEASE_BYTES_MAX = 2**16
FENCE = ".pen."  # name of a fence's directory, followed by the run
# How often to try one change.  A try fails if another launch, which wants the logdir, removes our fence after we have
# checked the lease.  If our renewal has replaced that launch's lease in the meantime, that launch gives way, and our
# next try succeeds.  So all tries fail only if one new launch after another removes our fence.
TRIES_MAX = 3

Unix = Annotated[float, msgspec.Meta(ge=0, le=1e11)]  # seconds


class ProcessSpace(msgspec.Struct, frozen=True):
    """The space in which a process id is valid."""

    host: str
    boot: str
    pids: str  # the pid namespace; each container on a machine numbers its own processes


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of lease.json."""

    run: str  # distinguishes this holder from all others
    place: ProcessSpace
    pid: Annotated[int, msgspec.Meta(ge=0, le=2**22)]
    started: float  # start of that process, in seconds since boot
    what: str  # the holder's command, for people
    since: Unix = 0.0
    renewed: Unix = 0.0

    @property
    def process(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.started, self.place.boot)


class LeaseStanding(Enum):
    """What a lease means to a process that wants the logdir."""

    FREE = auto()
    IN_USE = auto()
    # Cannot be judged from here.  If the lease does not change for a while, it has expired (LEASE_S in run_lock.py).
    WATCHED = auto()


def judge_lease(lease: Lease | None, here: ProcessSpace, *, has_lock: bool, is_alive: bool) -> LeaseStanding:
    """Judges a lease; None stands for a file that is not a lease.

    `has_lock`: we hold the directory's lock, and its filesystem has locks.  `is_alive`: whether the
    holder lives, if it is in our process space.  Within one kernel, locks work on every filesystem
    that has them, even on NFS.  So if we have the lock, and the lease was written under this boot
    of this kernel, then its holder is dead.
    """
    if lease is not None and has_lock and lease.place.boot == here.boot:
        return LeaseStanding.FREE
    if lease is not None and lease.place == here:
        return LeaseStanding.IN_USE if is_alive else LeaseStanding.FREE
    return LeaseStanding.WATCHED


def find_place() -> ProcessSpace:
    pids = ""
    with contextlib.suppress(OSError):
        pids = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    return ProcessSpace(socket.gethostname(), boot_id(), pids)


def find_elsewhere(paths: RunPaths, run: str) -> Lease | None:
    """Returns the lease of `run` if that launch may be alive where this process cannot see it.

    It may be alive on another machine.  It may also be alive in another container of this machine,
    unless the directory's lock is free.
    """
    lease, here = LeaseFile(paths).holder(), find_place()
    if lease is None or lease.run != run or (lease.place.boot, lease.place.pids) == (here.boot, here.pids):
        return None
    if lease.place.boot != here.boot:
        return lease if lease.place.host != here.host else None  # this machine before a reboot
    with contextlib.suppress(OSError):  # no locks there
        return lease if DirectoryLock(paths.home).is_held() else None
    return lease


class LeaseFile:
    """The file lease.json.  OSError passes through all methods but `holder` and `remove`."""

    def __init__(self, paths: RunPaths, *, has_run_json: bool = True) -> None:
        """`has_run_json`: whether run.json is beside the lease, and `successor` may use it.

        A logdir that a run has adopted from its program has a lease, but no run.json (adoption.py).
        """
        self._path, self._run_json = paths.lease, paths.run_json if has_run_json else None

    def read_lease(self) -> bytes | None:
        """Returns the file's contents; None if it does not exist."""
        return stale.try_again(self._read_bytes)  # a holder on another machine replaces it repeatedly

    def _read_bytes(self) -> bytes | None:
        try:
            return read_data(self._path, LEASE_BYTES_MAX)
        except FileNotFoundError:
            return None

    def holder(self) -> Lease | None:
        """Returns the lease; None if there is none, or it cannot be read."""
        try:
            return decode_lease(self.read_lease())
        except OSError:
            return None

    def successor(self, run: str) -> Lease | None:
        """Returns a lease for the launch that took the directory after `run` and has released it.

        That launch has removed its own lease, so this one is made from run.json, which every holder
        replaces.  None if run.json names no other launch than `run`.
        """
        last = read_run(self._run_json) if self._run_json is not None else None
        if last is None or last.run == run:
            return None
        place = ProcessSpace("another machine", last.boot, "")
        return Lease(run=last.run, place=place, pid=last.pid, started=last.started, what=f"procsv launch {last.target}")

    def age_s(self) -> float:
        """Returns the age of the file by the filesystem's clock, which may be another machine's."""
        probe = self._path.with_name(f".lease.{os.getpid()}.probe")
        os.close(disk.create(probe, 0o600, replace=True))
        try:
            return probe.stat().st_mtime - self._path.stat().st_mtime
        finally:
            disk.unlink_if_there(probe)

    def take_lease(self, lease: Lease, *, is_new: bool = False) -> None:
        """Writes `lease` over any other, and removes the fences of all other launches.

        Without its fence, another launch can no longer write there.  `is_new`: there was no lease.
        FileExistsError (only with `is_new`) or Fenced if another launch has taken the logdir first.

        A holder that is in the middle of renewing its lease may replace ours once, before its fence
        is gone.  So the caller must read the lease once more afterwards.  What it finds then is
        final.
        """
        fence = self._make_fence(lease.run)
        (self.create if is_new else self.replace)(lease)
        for other in self._path.parent.glob(f"{FENCE}*"):
            if other != fence.home and other.is_dir() and not other.is_symlink():
                fence.remove(other)
                disk.try_to_remove_tree(fence.home / f"{AWAY}{other.name}")

    def change(self, run: str, write: Callable[[FencedRename], None]) -> Lease | None:
        """Calls `write` to make a change that only the holder may make, through the fence of `run`.

        Returns None if no other launch has taken the logdir; otherwise that launch's lease.  Once
        that launch has removed our fence, the change has no effect.

        The order matters: this method creates the fence, and then checks the lease.  A launch that
        takes the logdir writes its lease, and then removes the fences.  So if the check finds no
        other lease, any later takeover also finds our fence.
        """
        for _ in range(TRIES_MAX):
            trouble: OSError | None = None
            fence = FencedRename(self._fence_home(run))
            try:
                fence = self._make_fence(run)
            except OSError as error:  # the logdir is gone, full or read-only; report a takeover before this error
                trouble = error
            if (taken := lost_to(self, run)) is not None:
                self._remove_fence(run)
                return taken
            if trouble is not None:
                raise trouble
            # Fenced: after the check, another launch has taken the logdir, or has tried to and given way.
            with contextlib.suppress(Fenced):
                write(fence)
                return lost_to(self, run)
        raise Fenced(f"another launch keeps removing the fence of run {run}")

    def create(self, lease: Lease) -> None:
        """Creates the file; FileExistsError if another process has just done so."""
        fd = disk.create(self._path, record_mode(self._path.parent))
        try:  # a kill here leaves an incomplete file, which the next launch watches like a lease
            disk.write(fd, _encode(lease))
        finally:
            os.close(fd)

    def replace(self, lease: Lease) -> None:
        """Replaces the file through the fence of its run; Fenced if the fence was removed."""
        failpoint("lease.before_replacing")
        fence, mode = FencedRename(self._fence_home(lease.run)), record_mode(self._path.parent)
        fence.put(self._path, _encode(lease), durable=False, mode=mode)

    def remove(self, run: str) -> None:
        """At the end of `run`, removes its fence, and the lease if `run` still holds it.

        If the lease cannot be removed, it expires, because nobody renews it any more.
        """
        with contextlib.suppress(OSError):
            if (lease := self.holder()) is not None and lease.run == run:
                self.change(run, lambda fence: fence.remove(self._path))
        self._remove_fence(run)

    def _fence_home(self, run: str) -> Path:
        return self._path.with_name(f"{FENCE}{run}")

    def _make_fence(self, run: str) -> FencedRename:
        home = self._fence_home(run)
        with contextlib.suppress(FileExistsError):
            disk.mkdir(home)
        return FencedRename(home)

    def _remove_fence(self, run: str) -> None:
        disk.try_to_remove_tree(self._fence_home(run))


def _encode(lease: Lease) -> bytes:
    return seal(encode_json(lease)) + b"\n"


def decode_lease(data: bytes | None) -> Lease | None:
    """Decodes a lease; None if it is not one."""
    try:
        return None if data is None else decode_sealed(data, Lease)
    except msgspec.DecodeError:
        return None


class LeaseKeeper:
    """Renews our lease."""

    def __init__(self, paths: RunPaths, lease: Lease, now_s: float, *, has_run_json: bool = True) -> None:
        """`has_run_json`: see LeaseFile."""
        self.lease = lease
        self._file, self._due_s = LeaseFile(paths, has_run_json=has_run_json), now_s + RENEW_S

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._due_s

    def renew(self, now_s: float, wall_s: float) -> Lease | None:
        """Renews the lease, and recreates a missing or damaged file.

        Returns the lease of the launch that has taken the logdir from us; None if none has.
        """
        self._due_s = now_s + RENEW_S
        self.lease = msgspec.structs.replace(self.lease, renewed=wall_s)
        with contextlib.suppress(OSError):  # the disk is full, read-only or gone: the next renewal tries again
            return self._file.change(self.lease.run, lambda fence: self._file.replace(self.lease))
        return None


def other_holder(file: LeaseFile, run: str) -> Lease | None:
    """Returns the lease if a launch other than `run` holds it now.

    None if no other launch does, or the lease cannot be read.
    """
    lease = file.holder()
    return lease if lease is not None and lease.run != run else None


def lost_to(file: LeaseFile, run: str) -> Lease | None:
    """Returns the lease of the launch that has taken the logdir from `run`; None if none has.

    A launch can take the logdir if `run` was stopped for longer than a lease lasts.  If that launch
    has since ended and removed its lease, this returns what `LeaseFile.successor` makes of
    run.json.
    """
    lease = file.holder()
    if lease is None:
        return file.successor(run)
    return lease if lease.run != run else None
