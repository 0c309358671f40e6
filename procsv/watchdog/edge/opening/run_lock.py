"""What a launch has in hand when it opens a run; and the run's lock, in a runtime directory that is held and has room.

Used by open_run.py.  Killed anywhere in here: the lock dies with us.
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

TIDYING_S_MAX = 10.0  # the last service of a dead run removes some files
ROOM_BYTES = 2**18  # that a runtime directory must have
TRIES_MAX = 100  # to get a lock file that stays; each loss means that another process has just tidied up


def _go_on(before: RunFile) -> None:
    """Whatever run is there is gone on with."""


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    paths: RunPaths
    us: Lease
    clock: Clock
    grace_s: float
    wait: Wait
    say: Callable[[str], None]
    group_readable: bool = False
    # Whether another machine's lease is watched before it is taken; not where somebody else decides who of two is heard.
    watches_lease: bool = True
    # Raises if the run that is there is not to be gone on with; nothing of it has been changed then.
    judge: Callable[[RunFile], None] = _go_on


def take_run_lock(request: OpenRequest, place: HeldDirectory) -> FileLock:
    """The run's lock, and its directory held; neither, where it raises.  LogdirLocked if another run has it."""
    try:
        return _take_lock(request, place)
    except OSError as error:
        place.release_directory()
        raise _unusable(request.paths.run_dir, error) from error
    except UserError:
        place.release_directory()
        raise


def _take_lock(request: OpenRequest, place: HeldDirectory) -> FileLock:
    """Once the last service of a killed run has tidied up."""
    paths, us, clock = request.paths, request.us, request.clock
    lock, deadline_s = FileLock(paths.run_lock), clock.monotonic() + TIDYING_S_MAX
    for _ in range(TRIES_MAX):
        place.hold(request.wait)
        with contextlib.suppress(FileNotFoundError):  # a run that ends has just removed the directory
            while not lock.try_acquire(us.what, clock.wall(), pid=us.pid):
                holder = lock.holder()
                if _stays(holder) or clock.monotonic() > deadline_s:
                    break
                lock.wake()  # it may be stopped in the middle
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
    """Whether who holds the lock is a run: not one that tidies up, or that has not written yet who it is."""
    return holder is not None and not holder.is_brief and psutil.pid_exists(holder.pid)


def used_here(paths: RunPaths, pid: int, since: float, what: str) -> LogdirLocked:
    """By a process of this machine."""
    here = find_place()
    return LogdirLocked(in_use(paths, Lease(run="", place=here, pid=pid, started=0.0, what=what, since=since), here))


def check_room(paths: RunPaths) -> None:
    """Room for the heartbeats and the other small files of a run, before anything is started that would miss it."""
    probe = paths.run_dir / ".probe.new"  # killed here: swept by the next launch
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
