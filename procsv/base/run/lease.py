"""The lease of a logdir: who writes there, for those whom no lock tells.

A lock holds on one machine; on a network filesystem it may say nothing to another, or be refused.  So whoever has a logdir
also keeps a small file in it, and writes that anew every few seconds.  Who finds another's lease watches whether it changes:
no clock is compared with another machine's.  Who finds that its own has been replaced writes there no more.

A look at it helps nobody who is stopped right behind it.  So who holds a logdir replaces the lease, and what else is its holder's alone (run.json,
and what leads from there to another directory), with a fence (base/system/fenced_rename.py), `procsv/.pen.<run>`, which whoever takes the logdir takes away.
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
from procsv.base.system.processes import ProcessIdentity, boot_id

declare("lease.before_replacing")

RENEW_S = 5.0  # how often its holder writes it anew
LEASE_BYTES_MAX = 2**16
FENCE = ".pen."  # and the run behind it: the directory of its fence
TRIES_MAX = 3  # of a change; more means that one launch after another takes our fence, and is refused for our lease

Unix = Annotated[float, msgspec.Meta(ge=0, le=1e11)]  # seconds


class ProcessSpace(msgspec.Struct, frozen=True):
    """Where a process id means something."""

    host: str
    boot: str
    pids: str  # the pid namespace: containers on one machine number their processes for themselves


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of lease.json."""

    run: str  # run id: tells this holder from every other
    place: ProcessSpace
    pid: Annotated[int, msgspec.Meta(ge=0, le=2**22)]
    started: float  # of that process, in seconds from the boot
    what: str
    since: Unix = 0.0
    renewed: Unix = 0.0

    @property
    def process(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.started, self.place.boot)


class LeaseStanding(Enum):
    """What a lease that was found means to who wants the logdir."""

    FREE = auto()
    IN_USE = auto()
    WATCHED = auto()  # nobody can tell from here: it has ended if it stays as it is


def judge_lease(lease: Lease | None, here: ProcessSpace, *, has_lock: bool, is_alive: bool) -> LeaseStanding:
    """`has_lock`: the directory's lock is ours, and its filesystem has locks.  `is_alive`: the holder, if it is of `here`.

    None: a file that is no lease.  One kernel keeps its own locks, whatever the filesystem, so a holder there is dead.
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


class LeaseFile:
    """lease.json.  OSError passes through all but `holder`."""

    def __init__(self, paths: RunPaths, *, has_run_json: bool = True) -> None:
        """`has_run_json`: whoever holds this lease writes run.json there, too; a directory that a run has adopted has none."""
        self._path, self._run_json = paths.lease, paths.run_json if has_run_json else None

    def read_lease(self) -> bytes | None:
        """What lies there; None if nothing does."""
        return stale.try_again(self._read_bytes)  # its holder on another machine replaces it again and again

    def _read_bytes(self) -> bytes | None:
        try:
            return read_data(self._path, LEASE_BYTES_MAX)
        except FileNotFoundError:
            return None

    def holder(self) -> Lease | None:
        """Whose it is, as far as that can be read."""
        try:
            return decode_lease(self.read_lease())
        except OSError:
            return None

    def successor(self, run: str) -> Lease | None:
        """Who has had the directory after `run`, which had written run.json there, and has let go of it again; None if nobody has."""
        last = read_run(self._run_json) if self._run_json is not None else None
        if last is None or last.run == run:
            return None
        place = ProcessSpace("another machine", last.boot, "")
        return Lease(run=last.run, place=place, pid=last.pid, started=last.started, what=f"procsv launch {last.target}")

    def age_s(self) -> float:
        """For how long nobody has written it, by the clock of the filesystem, which may be another machine's."""
        probe = self._path.with_name(f".lease.{os.getpid()}.probe")
        os.close(disk.create(probe, 0o600, replace=True))
        try:
            return probe.stat().st_mtime - self._path.stat().st_mtime
        finally:
            disk.unlink_if_there(probe)

    def take_lease(self, lease: Lease, *, is_new: bool = False) -> None:
        """Writes `lease`, whosever was there, and takes the fences of all others, so that none of them writes there any more.

        `is_new`: there was none.  FileExistsError, or Fenced, if somebody else has just taken it.  One that was about to renew its own
        may have it back, so whoever has called this looks once more: what it finds then, stays.
        """
        fence = self._pick_up(lease.run)
        (self.create if is_new else self.replace)(lease)
        for other in self._path.parent.glob(f"{FENCE}*"):
            if other != fence.home and other.is_dir() and not other.is_symlink():
                fence.take_away(other)
                disk.try_to_remove_tree(fence.home / f"{AWAY}{other.name}")

    def change(self, run: str, write: Callable[[FencedRename], None]) -> Lease | None:
        """Has `write` make a change that only the holder of the logdir may make, with the fence of `run`; who has taken the logdir, and
        then nothing was changed.

        First there is a fence, then comes the look: who takes the logdir writes its lease, and then takes the fences that are there.
        """
        for _ in range(TRIES_MAX):
            trouble: OSError | None = None
            fence = FencedRename(self._fence_home(run))
            try:
                fence = self._pick_up(run)
            except OSError as error:  # gone, full, read-only: another machine may have it all the same
                trouble = error
            if (taken := lost_to(self, run)) is not None:
                self._put_down(run)
                return taken
            if trouble is not None:
                raise trouble
            with contextlib.suppress(Fenced):  # taken between the look and the change, or by one that was refused then
                write(fence)
                return lost_to(self, run)
        raise Fenced(f"the pen of {run} is taken again and again")

    def create(self, lease: Lease) -> None:
        """FileExistsError if somebody else has just done so."""
        fd = disk.create(self._path, record_mode(self._path.parent))
        try:  # killed here: a file that is no lease, which the next launch watches as if it were one
            disk.write(fd, _encode(lease))
        finally:
            os.close(fd)

    def replace(self, lease: Lease) -> None:
        """With the fence of its run: Fenced if that was taken."""
        failpoint("lease.before_replacing")
        fence, mode = FencedRename(self._fence_home(lease.run)), record_mode(self._path.parent)
        fence.put(self._path, _encode(lease), durable=False, mode=mode)

    def remove(self, run: str) -> None:
        """At the end of `run`, with its fence, if it still has the lease; what cannot be removed is found to have ended."""
        with contextlib.suppress(OSError):
            if (lease := self.holder()) is not None and lease.run == run:
                self.change(run, lambda fence: fence.take_away(self._path))
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
    """None if it is not one."""
    try:
        return None if data is None else decode_sealed(data, Lease)
    except msgspec.DecodeError:
        return None


class LeaseKeeper:
    """Keeps a lease that is ours."""

    def __init__(self, paths: RunPaths, lease: Lease, now_s: float, *, has_run_json: bool = True) -> None:
        """`has_run_json`: see LeaseFile."""
        self.lease = lease
        self._file, self._due_s = LeaseFile(paths, has_run_json=has_run_json), now_s + RENEW_S

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._due_s

    def renew(self, now_s: float, wall_s: float) -> Lease | None:
        """Who has taken it, if somebody has.  A file that is gone, or damaged, is made again."""
        self._due_s = now_s + RENEW_S
        self.lease = msgspec.structs.replace(self.lease, renewed=wall_s)
        with contextlib.suppress(OSError):  # full, read-only, gone: as for all other files there, tried again
            return self._file.change(self.lease.run, lambda fence: self._file.replace(self.lease))
        return None


def taken_by(file: LeaseFile, run: str) -> Lease | None:
    """Who holds the lease instead of `run`; None also where nobody can tell."""
    lease = file.holder()
    return lease if lease is not None and lease.run != run else None


def lost_to(file: LeaseFile, run: str) -> Lease | None:
    """Who has taken the logdir from `run`, which had it and has stood still since: its holder, or one that has come to its end meanwhile."""
    lease = file.holder()
    if lease is None:
        return file.successor(run)
    return lease if lease.run != run else None
