"""Open a run: take the logdir, wait for what an earlier run has left alive, remove what is dead.

Called once, before anything is started. Snapshots of an earlier run stay: the checkpoint service
decides about them. If this process is killed at any point, its lock is freed, and the next launch
does everything again.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from procsv.base.clock import Clock
from procsv.base.errors import LogdirLocked, UserError
from procsv.base.identity import PROGRAM_ROLES
from procsv.base.outcome import NO_STEP, STEPS, SaveHabit
from procsv.base.run.adoption import adopted_logdir, remove_pointer, root_of
from procsv.base.run.cleanup import is_memory_empty, remove_dirs, remove_run_files, remove_shm_files, remove_staged
from procsv.base.run.lease import Lease, LeaseFile
from procsv.base.run.logs import NUMBER
from procsv.base.run.paths import RunPaths, check_socket_paths, find_paths, keep_name
from procsv.base.run.records import make_home
from procsv.base.run.run_file import RunFile, find_run_in
from procsv.base.run.saved_step import saved_step
from procsv.base.run.stale_memory import HeldDirectory, find_claim, make_owner, sweep_beside
from procsv.base.system.atomic_file import set_aside
from procsv.base.system.locks import DirectoryLock, FileLock
from procsv.watchdog.edge.opening.held_logdir import refuse_if_adopted
from procsv.watchdog.edge.opening.leftovers import wait_for_leftovers
from procsv.watchdog.edge.opening.run_lock import (
    TRIES_MAX,
    OpenRequest,
    check_room,
    take_lease,
    take_run_lock,
    used_here,
)

Places = tuple[HeldDirectory, HeldDirectory]  # the run directory and the shared memory


class OpenedRun(msgspec.Struct, kw_only=True):
    """A run that is now ours, and what the previous run has left to it."""

    lock: FileLock
    heirs: DirectoryLock  # the lock on the logdir, which every process that writes there inherits
    places: Places
    lease: Lease
    taken_from: Lease | None  # the expired lease of another machine, if we took the logdir from it
    first_incarnation: int
    seen_until: float | None  # if the previous watchdog was killed: the Unix time of its last run.json
    step_s: float = 0.0  # how long a step took in the previous run; 0.0 if unknown
    began_step: int = NO_STEP  # where training began, if the previous run has not completed it
    saved_step: int = NO_STEP  # the newest step on disk; if we cannot see the files, as the previous run recorded it
    adopted: Path | None = None  # the logdir that the previous run adopted from the program
    habit: SaveHabit = STEPS  # the program's, as the previous run saw it
    complete_step: int = NO_STEP  # the previous run's last step, if its program was complete


def open_run(request: OpenRequest) -> OpenedRun:
    """Take the logdir. LogdirLocked if another run has it; the error says which."""
    paths = request.paths
    check_socket_paths(paths)
    make_home(paths, group_readable=request.group_readable)
    places = HeldDirectory(paths.run_dir), HeldDirectory(paths.shm_dir)
    for _ in range(TRIES_MAX):
        if (opened := _try_to_open(request, places)) is not None:
            return opened
    raise LogdirLocked(f"{paths.run_lock} disappears again and again; does something clean {paths.run_dir.parent}?")


def _try_to_open(request: OpenRequest, places: Places) -> OpenedRun | None:
    """Open the run. None if the previous run's services have removed the run directory."""
    paths, clock, (place, memory) = request.paths, request.clock, places
    lock, heirs = take_run_lock(request, place), DirectoryLock(paths.home)
    try:
        before = _find_run_before(paths, request.say)
        wait_for_leftovers(request, before, heirs)
        if not lock.is_in_place():
            lock.release_lock()
            heirs.release_lock()
            return None
        _clear_what_is_dead(paths, lock, before)
        refuse_if_adopted(paths)
        root = root_of(paths.logdir)
        # `judge` decides whether the launch may resume. If another run has adopted this logdir, it judges that run.
        if (known := before if root is None else find_run_in(find_paths(root))) is not None:
            request.judge(known)
        memory.hold(request.wait, alone=True)
        if paths.own_home is None:
            _keep_name(paths)
        taken_from = take_lease(
            paths,
            request.us,
            clock,
            request.wait,
            request.say,
            has_lock=heirs.has_flock,
            watches=request.watches_lease,
        )
        remove_pointer(paths.logdir)
    except UserError:
        heirs.release_lock()
        lock.release()
        _give_back(paths, places)
        raise
    _claim(paths, places, clock)
    opened = OpenedRun(
        lock=lock,
        heirs=heirs,
        places=places,
        lease=request.us,
        taken_from=taken_from,
        first_incarnation=_last_incarnation(paths, before) + 1,
        seen_until=_seen_until(before),
        saved_step=saved_step(paths.logdir),
        adopted=adopted_logdir(before),
    )
    if before is not None:
        _take_over(opened, before)
    return opened


def _take_over(opened: OpenedRun, before: RunFile) -> None:
    """Copy what the previous run knew into `opened`."""
    if not before.has_local_logdir:
        opened.saved_step = before.durable_step  # the files cannot be seen from here
    opened.step_s, opened.habit = before.step_s, before.habit
    if before.state == "done":
        opened.complete_step = before.step
    else:
        opened.began_step = before.began_step


def _find_run_before(paths: RunPaths, say: Callable[[str], None]) -> RunFile | None:
    """Return the previous run; None if there was none. LogdirLocked if that run is alive.

    Our lock alone does not prove that it is dead: it may use another runtime directory than ours.
    """
    if (holder := find_claim(paths)) is not None:
        raise used_here(paths, holder.pid, holder.since, holder.what)
    before = _read_run_before(paths, say)
    if before is not None and _is_run_elsewhere(before):
        raise used_here(paths, before.pid, before.started_at, before.target)
    return before


def _read_run_before(paths: RunPaths, say: Callable[[str], None]) -> RunFile | None:
    before = find_run_in(paths)
    if before is None and paths.run_json.exists():
        kept = set_aside(paths.run_json)
        say(
            f"{paths.run_json} was damaged, or written by another procsv: it is {kept.name} now, and the run goes on without it"
        )
    return before


def _is_run_elsewhere(before: RunFile) -> bool:
    return before.ended_at is None and before.pid != os.getpid() and before.is_active


def _seen_until(before: RunFile | None) -> float | None:
    return None if before is None or before.ended_at is not None else before.seen_at


def _last_incarnation(paths: RunPaths, before: RunFile | None) -> int:
    """Return the highest attempt number of any task in the logdir, even if run.json was lost."""
    numbers = [before.incarnation if before is not None else 0]
    for directory, pattern in (
        (paths.logs, rf"(?:{'|'.join(PROGRAM_ROLES)})(?:\.\d+)?\.{NUMBER}\.log"),
        (paths.crashes, rf"(?:.*\.)?{NUMBER}\.json"),
    ):
        with contextlib.suppress(OSError):
            numbers += [int(m[1]) for path in directory.iterdir() if (m := re.fullmatch(pattern, path.name))]
    return max(numbers)


def _keep_name(paths: RunPaths) -> None:
    """Write the logdir's id again, if another launch has replaced it.

    That launch may have begun at the same time as ours. If it found the id's file damaged, it wrote
    another id, and only then failed to get the lock.
    """
    try:
        keep_name(paths)
    except OSError as error:
        raise LogdirLocked(f"the logdir {paths.logdir} cannot be written: {error.strerror}") from error


def _claim(paths: RunPaths, places: Places, clock: Clock) -> None:
    """Mark our directories as ours, and remove directories that other runs have abandoned."""
    owner = make_owner(paths)
    if not owner.is_kept:
        # The next launch does not need this memory: a killed member's launch fetched it, and the originals are on other
        # machines.
        remove_shm_files(paths)
    for held in places:
        held.claim(owner)
    sweep_beside(paths, clock.wall())


def _give_back(paths: RunPaths, places: Places) -> None:
    """Release the directories of a run that does not begin, and remove them if they are empty."""
    for held in places:
        held.release_directory()
    for directory in (paths.shm_dir, paths.run_dir):
        with contextlib.suppress(OSError):
            directory.rmdir()  # if it is empty, it was made only for the lock


# -- what is dead ----------------------------------------------------------------------------------------------
def _clear_what_is_dead(paths: RunPaths, lock: FileLock, before: RunFile | None) -> None:
    """Remove the files of the previous run, whose processes are all dead.

    Then check that there is room for our files.
    """
    _clear_run_dir(paths, lock)
    if before is not None and before.paths.run_dir != paths.run_dir:
        _clear_other_run_dir(before.paths)
    check_room(paths)


def _clear_run_dir(paths: RunPaths, lock: FileLock) -> None:
    """Remove stale sockets, heartbeats, locks and last words.

    Keep three kinds of files: our lock; files with a socket's name that are not sockets; and the
    records that say which killed attempt has left its lock on a `dataset.cache`.
    """
    odd = {path for path in paths.run_dir.glob("*.sock") if not stat.S_ISSOCK(path.lstat().st_mode)}
    remove_run_files(paths, keep=frozenset({lock.path, *odd, *paths.run_dir.glob("caches.*.json")}))


def _clear_other_run_dir(paths: RunPaths) -> None:
    """Remove what a killed run has left in another runtime directory than ours.

    A detached run, for example, has another one.
    """
    with contextlib.suppress(OSError):
        remove_run_files(paths)
        paths.run_dir.rmdir()


def remove_run(paths: RunPaths, opened: OpenedRun, keep_memory: bool) -> None:
    """Remove everything that the run has outside the logdir, and its lease in the logdir.

    This is the last act of a clean end. If the process is killed halfway, the next launch removes
    the rest. `keep_memory`: keep snapshots that could not be saved, for the next launch.
    """
    if not keep_memory or is_memory_empty(paths):
        remove_shm_files(paths)
    if not keep_memory and not paths.is_member:
        remove_staged(paths.home)  # what is still staged was not saved, because its step was already on disk
    _clear_run_dir(paths, opened.lock)
    LeaseFile(paths).remove(opened.lease.run)
    opened.heirs.release_lock()
    opened.lock.release()
    for place in opened.places:
        place.release_directory()
    remove_dirs(paths)  # only empty directories: another launch may already use the others
