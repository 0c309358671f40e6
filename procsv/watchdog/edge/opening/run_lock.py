"""Take the run's lock, in a runtime directory that is held and has room.

The request to open a run is defined here, too. Used by open_run.py. If this is killed at any point,
the lock dies with the process.
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
from procsv.base.run.lease import Lease, find_place
from procsv.base.run.paths import RunPaths
from procsv.base.run.run_file import RunFile, read_run
from procsv.base.run.stale_memory import HeldDirectory
from procsv.base.system.locks import FileLock, Holder
from procsv.watchdog.edge.opening.logdir_lease import Wait, in_use

TIDYING_S_MAX = 10.0  # how long a run that is over may take to leave, or a dead run's last service to remove its files
ROOM_BYTES = 2**18  # the free space that a runtime directory must have
TRIES_MAX = 100  # to get a lock file that stays; each loss means that another process has just removed it


def _go_on(before: RunFile) -> None:
    """Accept any run that is there."""


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    paths: RunPaths
    us: Lease
    clock: Clock
    grace_s: float
    wait: Wait
    say: Callable[[str], None]
    group_readable: bool = False
    # Whether to watch another machine's lease before taking it; not if something else decides which launch counts.
    watches_lease: bool = True
    # Raises if the launch must not resume the existing run, of which nothing has been changed at that point.
    judge: Callable[[RunFile], None] = _go_on


def take_run_lock(request: OpenRequest, place: HeldDirectory) -> FileLock:
    """Take the run's lock and hold its directory, or neither if it raises. LogdirLocked if another
    run has it.
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
    """Take the lock once the last service of a killed run has tidied up."""
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
    """Whether the lock's holder is a run; not a process that tidies up, or that has not written its
    name yet.
    """
    return holder is not None and not holder.is_brief and psutil.pid_exists(holder.pid)


def _has_ended(run: RunFile | None, holder: Holder) -> bool:
    """Whether the holder's run is over, so that it only tidies up, or waits for its commands of --on-event."""
    return run is not None and run.pid == holder.pid and run.ended_at is not None


def used_here(paths: RunPaths, pid: int, since: float, what: str) -> LogdirLocked:
    """Return the error for a logdir that a process of this machine uses."""
    here = find_place()
    return LogdirLocked(in_use(paths, Lease(run="", place=here, pid=pid, started=0.0, what=what, since=since), here))


def check_room(paths: RunPaths) -> None:
    """Check that there is room for heartbeats and other small files, before starting anything that
    needs it.
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
