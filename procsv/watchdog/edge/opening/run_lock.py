"""Take the lease of a logdir, and the lock of a run.

The lease is a file in the logdir that tells other machines which run owns the logdir. If another
machine may still hold the lease, we watch it first. We take it once it has not changed for a while.
So the clocks of two machines are never compared. The lock is a file in the runtime directory, which
must have room for small files. If this process is killed at any point, the lock is freed.

This module also defines the request to open a run. Used by open_run.py and held_logdir.py. Both
take the lock on the logdir before they take its lease. held_logdir.py renews the lease.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from procsv.base import exit_codes
from procsv.base.clock import Clock
from procsv.base.errors import LogdirLocked, UserError
from procsv.base.run.lease import (
    Lease,
    LeaseFile,
    LeaseStanding,
    ProcessSpace,
    decode_lease,
    find_place,
    judge_lease,
    other_holder,
)
from procsv.base.run.paths import RunPaths
from procsv.base.run.run_file import RunFile, read_run
from procsv.base.run.stale_memory import HeldDirectory
from procsv.base.system.fenced_rename import Fenced
from procsv.base.system.locks import FileLock, Holder
from procsv.base.terminal import printable
from procsv.base.units import show_time

LEASE_S = 60.0  # a lease that does not change while we watch it for this long has expired
LEASE_S_LOOKS_OLD = 15.0  # instead of LEASE_S, if by the filesystem's own clock the lease is already older than LEASE_S
# If two launches may have taken the lease at once, wait this long and check whether it is still ours. They may have, if
# the lease had expired on another machine, or if the filesystem has no locks.
SETTLE_S = 2.0
LOOK_S = 0.5
TIDYING_S_MAX = 10.0  # how long an ended run may take to exit, or a dead run's last service to remove its files
ROOM_BYTES = 2**18  # the free space that a runtime directory must have
TRIES_MAX = 100  # tries to lock a file that stays; a try fails if another process has just removed the file

Wait = Callable[[float], None]


def take_lease(
    paths: RunPaths,
    ours: Lease,
    clock: Clock,
    wait: Wait,
    say: Callable[[str], None],
    *,
    has_lock: bool,
    watches: bool = True,
) -> Lease | None:
    """Write the lease `ours`. LogdirLocked if the logdir is in use, or cannot be written.

    Return the previous lease if it was another machine's; otherwise None. `has_lock`: we hold the
    logdir's lock, and its filesystem has locks. `watches`: if False, take another machine's lease
    at once. This is for a member's own directories: members do not renew their leases, and the
    coordinator decides which of two launches has a task.
    """
    file, taken_from = LeaseFile(paths), None
    try:
        data, settles = file.read_lease(), False
        if data is not None:
            found = decode_lease(data)
            is_alive = found is not None and found.process.is_alive()
            standing = judge_lease(found, ours.place, has_lock=has_lock, is_alive=is_alive)
            if standing is LeaseStanding.WATCHED:
                if watches:
                    _watch(paths, file, data, clock, wait, say)
                taken_from = found
            elif standing is LeaseStanding.IN_USE and found is not None:
                raise LogdirLocked(in_use(paths, found, ours.place))
            settles = (standing is LeaseStanding.WATCHED and watches) or not has_lock
        file.take_lease(ours, is_new=data is None)
        if settles:
            wait(SETTLE_S)
        if (other := other_holder(file, ours.run)) is not None:
            file.remove(ours.run)
            raise LogdirLocked(in_use(paths, other, ours.place))
    except (FileExistsError, Fenced):
        file.remove(ours.run)
        raise LogdirLocked(f"the logdir {paths.logdir} is in use: another launch has just begun there") from None
    except OSError as error:
        raise LogdirLocked(f"the logdir {paths.logdir} cannot be written: {error.strerror}") from error
    return taken_from


def _watch(paths: RunPaths, file: LeaseFile, data: bytes, clock: Clock, wait: Wait, say: Callable[[str], None]) -> None:
    """Wait until a lease has expired. LogdirLocked as soon as its holder renews it."""
    found = decode_lease(data)
    who = name_holder(found) if found is not None else "somebody"
    seconds = LEASE_S_LOOKS_OLD if file.age_s() > LEASE_S else LEASE_S
    say(f"{who} wrote to {paths.logdir} last: waiting {seconds:.0f} s to see whether it still does")
    until_s = clock.monotonic() + seconds
    while clock.monotonic() < until_s:
        wait(LOOK_S)
        if (now := file.read_lease()) not in (data, None):
            holder = decode_lease(now)
            raise LogdirLocked(
                f"the logdir {paths.logdir} is in use: another machine writes there"
                if holder is None
                else in_use(paths, holder, None)
            )
    say(f"{who} has not renewed its lease: this launch takes over {paths.logdir}")


def in_use(paths: RunPaths, lease: Lease, here: ProcessSpace | None) -> str:
    """Return why `paths.logdir` is not available, and what a user can do about it."""
    when = show_time(lease.since)
    if lease.place == here:
        return (
            f"the logdir {paths.logdir} is in use: process {lease.pid} ({printable(lease.what)}) runs it since {when}; "
            f"look at it with `procsv status {paths.logdir}`, end it with `procsv stop {paths.logdir}`; "
            "to train beside it, use `procsv launch --new` or another --logdir"
        )
    return (
        f"the logdir {paths.logdir} is in use: {name_holder(lease)} runs it since {when}; end it there, with `procsv stop`. "
        f"If that machine is dead, the same command takes over once its lease is {LEASE_S:.0f} s old"
    )


def name_holder(lease: Lease) -> str:
    """Name the holder for people. A lease file may contain any text, so it is escaped."""
    return printable(f"process {lease.pid} on {lease.place.host} ({lease.what})")


def _go_on(before: RunFile) -> None:
    """Accept any run that is there."""


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    paths: RunPaths
    us: Lease  # the lease that this launch writes
    clock: Clock
    grace_s: float
    wait: Wait
    say: Callable[[str], None]
    group_readable: bool = False
    watches_lease: bool = True  # whether to watch another machine's lease before taking it (`take_lease`)
    # Raises if the launch must not resume the existing run. Nothing of that run has been changed when it is called.
    judge: Callable[[RunFile], None] = _go_on


def take_run_lock(request: OpenRequest, place: HeldDirectory) -> FileLock:
    """Take the run's lock, and hold the directory `place` in which it is.

    LogdirLocked if another run has the lock, UserError if the directory cannot be used. After an
    error, neither is held.
    """
    try:
        return _take_lock(request, place)
    except OSError as error:
        place.release_directory()
        raise _unusable(request.paths.run_dir, error) from error
    except UserError:
        place.release_directory()
        raise


def _take_lock(request: OpenRequest, place: HeldDirectory) -> FileLock:
    """Take the lock. Wait for a run that is over and still exits, and for the last service of a
    killed run, which may still remove files.
    """
    paths, us, clock = request.paths, request.us, request.clock
    lock, deadline_s = FileLock(paths.run_lock), clock.monotonic() + TIDYING_S_MAX
    for _ in range(TRIES_MAX):
        place.hold(request.wait)
        with contextlib.suppress(FileNotFoundError):  # an ending run has just removed the directory
            while not lock.try_acquire(us.what, clock.wall(), pid=us.pid):
                holder = lock.holder()
                is_ending = holder is not None and _has_ended(read_run(paths.run_json), holder)
                if (_stays(holder) and not is_ending) or clock.monotonic() > deadline_s:
                    break
                lock.wake()  # the holder may be stopped (SIGSTOP)
                request.wait(0.02)
            else:
                return lock
            run = read_run(paths.run_json)
            if holder is not None:
                raise used_here(paths, holder.pid, holder.since, holder.what)
            if run is not None:
                raise used_here(paths, run.pid, run.started_at, "procsv")
    raise LogdirLocked(
        f"the logdir {paths.logdir} is in use: a process holds {paths.run_lock}; `fuser {paths.run_lock}` names it"
    )


def _stays(holder: Holder | None) -> bool:
    """Whether the lock's holder is a run, which keeps the lock.

    Otherwise the holder only removes files, is dead, or has not written its name into the lock file
    yet.
    """
    return holder is not None and not holder.is_brief and psutil.pid_exists(holder.pid)


def _has_ended(run: RunFile | None, holder: Holder) -> bool:
    """Whether the holder's run is over: it only cleans up, or waits for commands of --on-event."""
    return run is not None and run.pid == holder.pid and run.ended_at is not None


def used_here(paths: RunPaths, pid: int, since: float, what: str) -> LogdirLocked:
    """Return the error for a logdir that a process of this machine uses."""
    here = find_place()
    return LogdirLocked(in_use(paths, Lease(run="", place=here, pid=pid, started=0.0, what=what, since=since), here))


def check_room(paths: RunPaths) -> None:
    """Check that there is room for heartbeats and other small files. UserError if there is none.

    Called before anything is started.
    """
    probe = paths.run_dir / ".probe.new"  # if we are killed here, the next launch removes it
    try:
        fd = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, ROOM_BYTES)
        finally:
            os.close(fd)
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise _unusable(paths.run_dir, error) from error


def _unusable(run_dir: Path, error: OSError) -> UserError:
    return UserError(
        f"the runtime directory {run_dir} cannot be used: {error.strerror}; make room there, or set XDG_RUNTIME_DIR "
        "to a directory that has some",
        exit_code=exit_codes.LOGDIR_UNUSABLE,
    )
