"""Keep the lease of a logdir, which shows other machines who writes there.

A lock works on one machine.  On a network filesystem, another machine may not see it, or may get no
lock at all.  So the holder of a logdir also keeps a small file in it, the lease, and rewrites it
every few seconds.  A process that finds another's lease watches whether it changes, so clocks of
two machines are never compared.  A process that finds its own lease replaced stops writing there.

Checking the lease is not enough, because a process may be stopped right after the check.  So the
holder replaces the lease, and other files that only the holder may change (run.json, and pointers
to another directory), through a fence (base/system/fenced_rename.py) in `procsv/.pen.<run>`.  A
process that takes the logdir removes the fences of all others.
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

RENEW_S = 5.0  # how often its holder rewrites it
LEASE_BYTES_MAX = 2**16
FENCE = ".pen."  # name of a fence's directory, followed by the run
# How often to try one change.  All tries fail only if new launches keep removing our fence, each before our lease makes
# that launch give up.
TRIES_MAX = 3

Unix = Annotated[float, msgspec.Meta(ge=0, le=1e11)]  # seconds


class ProcessSpace(msgspec.Struct, frozen=True):
    """The space in which a process id is valid."""

    host: str
    boot: str
    pids: str  # the pid namespace; each container on a machine numbers its own processes


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of lease.json."""

    run: str  # run id, which distinguishes this holder from all others
    place: ProcessSpace
    pid: Annotated[int, msgspec.Meta(ge=0, le=2**22)]
    started: float  # start of that process, in seconds since boot
    what: str
    since: Unix = 0.0
    renewed: Unix = 0.0

    @property
    def process(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.started, self.place.boot)


class LeaseStanding(Enum):
    """What a lease means to a process that wants the logdir."""

    FREE = auto()
    IN_USE = auto()
    WATCHED = auto()  # cannot be judged from here; if the lease does not change for a while, it has ended


def judge_lease(lease: Lease | None, here: ProcessSpace, *, has_lock: bool, is_alive: bool) -> LeaseStanding:
    """Judges a lease; None stands for a file that is not a lease.

    `has_lock`: we hold the directory's lock, and its filesystem has locks.  `is_alive`: whether the
    holder lives, if it is in our process space.  One kernel enforces its own locks on any
    filesystem, so if we have the lock, a holder under this kernel is dead.
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
    """Returns the lease of `run` if the run may be alive where this process cannot see it.

    That may be on another machine, or, if some process holds the directory's lock, in another
    container of this machine.
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
    """The file lease.json.  OSError passes through all methods but `holder`."""

    def __init__(self, paths: RunPaths, *, has_run_json: bool = True) -> None:
        """`has_run_json`: the holder also writes run.json there.

        A directory that a run has adopted has none.
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
        """Returns the lease of the run that took the directory after `run` and has released it.

        The lease is made from run.json, because each holder writes its own run.json.  None if no
        run has taken the directory.
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
        """Writes `lease` over any other, and removes the fences of all other runs.

        Without their fences they stop writing there.  `is_new`: there was no lease.
        FileExistsError, or Fenced, if another process has just taken it.

        A holder that is just renewing its lease may replace ours once, before its fence is gone.
        So the caller must read the lease once more afterwards; what it finds then is final.
        """
        fence = self._pick_up(lease.run)
        (self.create if is_new else self.replace)(lease)
        for other in self._path.parent.glob(f"{FENCE}*"):
            if other != fence.home and other.is_dir() and not other.is_symlink():
                fence.remove(other)
                disk.try_to_remove_tree(fence.home / f"{AWAY}{other.name}")

    def change(self, run: str, write: Callable[[FencedRename], None]) -> Lease | None:
        """Calls `write` to make a change that only the holder may make, through the fence of `run`.

        Returns None if no process has taken the logdir.  Otherwise returns that process's lease,
        and a change after it took the logdir has no effect.  `change` creates the fence before it
        checks the lease, because a process that takes the logdir writes its lease before it removes
        the fences.
        """
        for _ in range(TRIES_MAX):
            trouble: OSError | None = None
            fence = FencedRename(self._fence_home(run))
            try:
                fence = self._pick_up(run)
            except OSError as error:  # the logdir is gone, full or read-only; another machine may have taken it, too
                trouble = error
            if (taken := lost_to(self, run)) is not None:
                self._put_down(run)
                return taken
            if trouble is not None:
                raise trouble
            with contextlib.suppress(Fenced):  # somebody took the logdir after the check, or tried to and was refused
                write(fence)
                return lost_to(self, run)
        raise Fenced(f"another launch keeps removing the fence of run {run}")

    def create(self, lease: Lease) -> None:
        """Creates the file; FileExistsError if another process has just done so."""
        fd = disk.create(self._path, record_mode(self._path.parent))
        try:  # a kill here leaves a file that is not a lease, but the next launch watches it like one
            disk.write(fd, _encode(lease))
        finally:
            os.close(fd)

    def replace(self, lease: Lease) -> None:
        """Replaces the file through the fence of its run; Fenced if the fence was removed."""
        failpoint("lease.before_replacing")
        fence, mode = FencedRename(self._fence_home(lease.run)), record_mode(self._path.parent)
        fence.put(self._path, _encode(lease), durable=False, mode=mode)

    def remove(self, run: str) -> None:
        """Removes the lease through the fence at the end of `run`, if `run` still holds it.

        If that fails, other launches see that the lease is no longer renewed.
        """
        with contextlib.suppress(OSError):
            if (lease := self.holder()) is not None and lease.run == run:
                self.change(run, lambda fence: fence.remove(self._path))
        self._put_down(run)

    def _fence_home(self, run: str) -> Path:
        return self._path.with_name(f"{FENCE}{run}")

    def _pick_up(self, run: str) -> FencedRename:
        home = self._fence_home(run)
        with contextlib.suppress(FileExistsError):
            disk.mkdir(home)
        return FencedRename(home)

    def _put_down(self, run: str) -> None:
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
        """Renews the lease; returns the lease of a process that has taken it.

        Recreates a missing or damaged file.
        """
        self._due_s = now_s + RENEW_S
        self.lease = msgspec.structs.replace(self.lease, renewed=wall_s)
        with contextlib.suppress(OSError):  # full, read-only or gone: try again later, as for other files there
            return self._file.change(self.lease.run, lambda fence: self._file.replace(self.lease))
        return None


def taken_by(file: LeaseFile, run: str) -> Lease | None:
    """Returns the lease if a run other than `run` holds it.

    None also if the lease cannot be read.
    """
    lease = file.holder()
    return lease if lease is not None and lease.run != run else None


def lost_to(file: LeaseFile, run: str) -> Lease | None:
    """Returns the lease of the run that has taken the logdir from `run`; None if none has.

    It could do so because `run` was stopped.  That run may have ended since (`successor`).
    """
    lease = file.holder()
    if lease is None:
        return file.successor(run)
    return lease if lease.run != run else None
