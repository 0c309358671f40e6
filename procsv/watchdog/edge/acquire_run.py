"""Opening a run: take the logdir, wait for what an earlier run has left alive, clear what it has left dead.

Called once by main.py before anything is started.  Never removes snapshots: the checkpoint service decides about these.
Killed anywhere in here: the lock dies with us, and the next launch does it all again.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shlex
import signal
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import psutil

from procsv.base import exit_codes
from procsv.base.clock import Clock
from procsv.base.errors import LogdirLocked, UserError
from procsv.base.identity import PROGRAM_ROLES, TRAINER
from procsv.base.outcome import NO_STEP, STEPS, SaveHabit
from procsv.base.run.adoption import adopted_logdir, remove_pointer, root_of
from procsv.base.run.cleanup import is_memory_empty, remove_dirs, remove_run_files, remove_shm_files, remove_staged
from procsv.base.run.lease import Lease, LeaseFile, find_place
from procsv.base.run.logs import NUMBER
from procsv.base.run.paths import RunPaths, check_socket_paths, find_paths, keep_name
from procsv.base.run.records import make_home
from procsv.base.run.run_file import RunFile, find_run_in, read_run
from procsv.base.run.saved_step import saved_step
from procsv.base.run.stale_memory import HeldDirectory, find_claim, make_owner, sweep_beside
from procsv.base.service_table import SERVICES
from procsv.base.signals import Default, default_of
from procsv.base.system.atomic_file import set_aside
from procsv.base.system.locks import DirectoryLock, FileLock, Holder
from procsv.base.system.processes import identify
from procsv.base.terminal import printable
from procsv.ipc.messaging.start import Start
from procsv.watchdog.core.events import StopAsked
from procsv.watchdog.edge.resources.adopted_logdir import refuse_if_adopted
from procsv.watchdog.edge.resources.logdir_lease import in_use, take_lease
from procsv.watchdog.edge.resources.orphans import Orphans
from procsv.watchdog.edge.signals import Signals

LEFTOVER_MARGIN_S = 15.0  # beyond the grace: the services of a dead run tidy up after its trainer
TIDYING_S_MAX = 10.0  # the last service of a dead run removes some files
ENDING_S_MAX = 10.0  # beyond that: for a program that had its time, and is killed, to be gone
ROOM_BYTES = 2**18  # that a runtime directory must have
TRIES_MAX = 100  # to get a lock file that stays; each loss means that another process has just tidied up

Wait = Callable[[float], None]  # waits that long, or raises because the run is not wanted any more


class Opened(msgspec.Struct):
    lock: FileLock
    heirs: DirectoryLock  # on the logdir: passed on to everything that writes there
    lease: Lease
    first_incarnation: int
    seen_until: float | None  # Unix time: the run before was killed, and wrote run.json then for the last time
    step_s: float = 0.0  # how long a step took in the run before; 0.0 if nobody knows
    began_step: int = NO_STEP  # of a training that the run before has not brought to its end
    saved_step: int = NO_STEP  # of what earlier runs have left to go on from, as far as it can be seen
    taken_from: Lease | None = None  # of another machine, which had not renewed it
    adopted: Path | None = None  # the logdir that the run before has adopted from the program
    habit: SaveHabit = STEPS  # of the program, as the run before has seen it
    complete_step: int = NO_STEP  # of the run before, if its program had come to its end
    places: tuple[HeldDirectory, ...] = ()  # the run directory and the shared memory


def open_run(
    paths: RunPaths,
    clock: Clock,
    grace_s: float,
    wait: Wait,
    say: Callable[[str], None],
    us: Lease,
    *,
    group_readable: bool = False,
    is_member: bool = False,
    judge: Callable[[RunFile], None] = lambda before: None,
) -> Opened:
    """Makes the logdir ours, or LogdirLocked saying who has it.

    `judge` raises if the run that is there is not to go on; nothing of it has been changed then.
    `is_member`: of a run on several machines, whose coordinator tells a launch from one that had its place on another machine.
    """
    check_socket_paths(paths)
    make_home(paths, group_readable=group_readable)
    places = place, memory = HeldDirectory(paths.run_dir), HeldDirectory(paths.shm_dir)
    for _ in range(TRIES_MAX):
        lock, heirs = _take_place(paths, place, clock, us, wait), DirectoryLock(paths.home)
        try:
            before = _find_run_before(paths, say)
            orphans = Orphans(paths, clock, say)
            _wait_for_leftovers(paths, before, heirs, us, clock, grace_s, wait, say, orphans)
            if lock.is_in_place():
                _clear_what_is_dead(paths, lock, before)
                refuse_if_adopted(paths)
                root = root_of(paths.logdir)
                if (known := before if root is None else find_run_in(find_paths(root))) is not None:
                    judge(known)
                memory.hold(wait, alone=True)
                if paths.own_home is None:
                    _keep_name(paths)
                how = {"has_lock": heirs.is_firm, "watches": not is_member}
                taken_from = take_lease(paths, us, clock, wait, say, **how)
                remove_pointer(paths.logdir)
                break
            lock.let_go()  # the services of the run before have removed the run directory under us
            heirs.let_go()
        except UserError:
            heirs.let_go()
            lock.release()
            _give_back(paths, places)
            raise
    else:
        raise LogdirLocked(f"{paths.run_lock} disappears again and again; does something clean {paths.run_dir.parent}?")
    _claim(paths, places, clock)
    return _describe_opened(paths, lock, heirs, us, before, taken_from, places)


def _take_place(paths: RunPaths, place: HeldDirectory, clock: Clock, us: Lease, wait: Wait) -> FileLock:
    """The run's lock, and its directory held; neither, where it raises."""
    try:
        return _take_lock(paths, place, clock, us, wait)
    except OSError as error:
        place.release_directory()
        raise _unusable(paths.run_dir, error) from error
    except UserError:
        place.release_directory()
        raise


def _find_run_before(paths: RunPaths, say: Callable[[str], None]) -> RunFile | None:
    """The run that was here; LogdirLocked if it lives, with other runtime directories."""
    if (holder := find_claim(paths)) is not None:
        raise LogdirLocked(_in_use(paths, holder.pid, holder.since, holder.what))
    before = _read_run_before(paths, say)
    if before is not None and _is_run_elsewhere(before):
        raise LogdirLocked(_in_use(paths, before.pid, before.started_at, before.target))
    return before


def _clear_what_is_dead(paths: RunPaths, lock: FileLock, before: RunFile | None) -> None:
    """Of the run before, now that nothing of it lives; then there has to be room for ours."""
    clear_run_dir(paths, lock)
    if before is not None and before.paths.run_dir != paths.run_dir:
        _clear_other_run_dir(before.paths)
    _check_room(paths)


def _give_back(paths: RunPaths, places: Sequence[HeldDirectory]) -> None:
    """What was held and made for a run that does not begin."""
    for held in places:
        held.release_directory()
    for directory in (paths.shm_dir, paths.run_dir):
        with contextlib.suppress(OSError):
            directory.rmdir()  # made for the lock, unless it is theirs


def _claim(paths: RunPaths, places: Sequence[HeldDirectory], clock: Clock) -> None:
    """Writes into our directories whose they are, and sweeps those of others that nobody needs."""
    owner = make_owner(paths)
    if not owner.is_kept:
        remove_shm_files(paths)  # fetched for a task of a launch that was killed: nothing is here alone
    for held in places:
        held.claim(owner)
    sweep_beside(paths, clock.wall())


def _describe_opened(
    paths: RunPaths,
    lock: FileLock,
    heirs: DirectoryLock,
    us: Lease,
    before: RunFile | None,
    taken_from: Lease | None,
    places: tuple[HeldDirectory, ...],
) -> Opened:
    """The run that is ours now, with what the one before has left."""
    opened = Opened(
        lock,
        heirs,
        us,
        _last_incarnation(paths, before) + 1,
        _seen_until(paths, before),
        saved_step=saved_step(paths.logdir),
        taken_from=taken_from,
        adopted=adopted_logdir(before),
        places=places,
    )
    if before is None:
        return opened
    if not before.has_local_logdir:
        opened.saved_step = before.durable_step  # the files are not here to be seen
    opened.step_s, opened.habit = before.step_s, before.habit
    if before.state == "done":
        opened.complete_step = before.step
    else:
        opened.began_step = before.began_step
    return opened


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


def _seen_until(paths: RunPaths, before: RunFile | None) -> float | None:
    if before is None or before.ended_at is not None:
        return None
    return paths.run_json.stat().st_mtime


def _take_lock(paths: RunPaths, place: HeldDirectory, clock: Clock, us: Lease, wait: Wait) -> FileLock:
    """The run's lock, and its directory held, once the last service of a killed run has tidied up; LogdirLocked if another run has it."""
    lock, deadline_s = FileLock(paths.run_lock), clock.monotonic() + TIDYING_S_MAX
    for _ in range(TRIES_MAX):
        place.hold(wait)
        with contextlib.suppress(FileNotFoundError):  # a run that ends has just removed the directory
            while not lock.try_acquire(us.what, clock.wall(), pid=us.pid):
                holder = lock.holder()
                if _stays(holder) or clock.monotonic() > deadline_s:
                    break
                lock.wake()  # it may be stopped in the middle
                wait(0.02)
            else:
                return lock
            run = read_run(paths.run_json)
            if holder is not None:
                raise LogdirLocked(_in_use(paths, holder.pid, holder.since, holder.what))
            if run is not None:
                raise LogdirLocked(_in_use(paths, run.pid, run.started_at, "procsv"))
    raise LogdirLocked(f"{paths.run_lock} is held by another process")


def _keep_name(paths: RunPaths) -> None:
    """Another launch at the same time, which did not get the lock, may have found the file damaged and made another id."""
    try:
        keep_name(paths)
    except OSError as error:
        raise LogdirLocked(f"the logdir {paths.logdir} cannot be written: {error.strerror}") from error


def _stays(holder: Holder | None) -> bool:
    """Whether who holds the lock is a run: not one that tidies up, or that has not written yet who it is."""
    return holder is not None and not holder.is_brief and psutil.pid_exists(holder.pid)


def _check_room(paths: RunPaths) -> None:
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


def _in_use(paths: RunPaths, pid: int, since: float, what: str) -> str:
    here = find_place()
    return in_use(paths, Lease(run="", place=here, pid=pid, started=0.0, what=what, since=since), here)


# -- what is still alive ---------------------------------------------------------------------------------------
def _wait_for_leftovers(
    paths: RunPaths,
    before: RunFile | None,
    heirs: DirectoryLock,
    us: Lease,
    clock: Clock,
    grace_s: float,
    wait: Wait,
    say: Callable[[str], None],
    orphans: Orphans,
) -> None:
    """Trainer and services of a run whose watchdog was killed save and leave by themselves: give them their time, and end what
    the program leaves.

    Takes the logdir's lock once they have; LogdirLocked if whoever runs a run is alive.
    """
    deadline_s = clock.monotonic() + grace_s + LEFTOVER_MARGIN_S
    locks = _locks(paths, "")
    if before is not None and before.run_dir != str(paths.run_dir):  # it ran with another runtime directory
        locks |= _locks(before.paths, " (before)")
    said = False
    while True:
        has_heirs = not heirs.try_acquire()
        if has_heirs:
            _refuse_if_run(paths, us)
        held = {who: path for who, path in locks.items() if FileLock(path).is_held()}
        late_s = clock.monotonic() - deadline_s
        left = orphans.end_orphans(heirs.holders if has_heirs else lambda: None, late_s > 0)
        if not has_heirs and not held and not left:
            return
        if late_s > 0 or not said:
            alive = {*left, *(heirs.holders() if has_heirs else ())}
            names = ", ".join(_names(held, sorted(alive))) or "a process that cannot be seen"
        if late_s > (ENDING_S_MAX if orphans.is_ending else 0):
            raise LogdirLocked(f"what an earlier run started in {paths.logdir} is still alive: {names}; end it first")
        if not said and (held or has_heirs or orphans.has_program):
            said = True
            say(f"the run before was killed; waiting for what it left to save and end: {names}")
        for path in held.values():
            if not path.name.startswith("writer"):  # held by heirs; a service ends a trainer that is stopped
                FileLock(path).wake()
        wait(0.05)


def _refuse_if_run(paths: RunPaths, us: Lease) -> None:
    """LogdirLocked if the run that has the logdir's lock is alive, as far as its lease tells."""
    lease = LeaseFile(paths).holder()
    if lease is None or lease.process == us.process:  # what our own last run has left
        return
    if lease.place != us.place or lease.process.is_alive():
        raise LogdirLocked(in_use(paths, lease, us.place))


def _names(held: dict[str, Path], heirs: list[int]) -> list[str]:
    """Who is still alive, for people: "trainer (process 12)"."""
    pids = {who: _pids(path) for who, path in held.items()}
    named = [f"{who} (process {', '.join(map(str, of))})" if of else who for who, of in pids.items()]
    known = {pid for of in pids.values() for pid in of}
    return named + [_describe(pid) for pid in heirs if pid not in known]


def _describe(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        since = datetime.datetime.fromtimestamp(psutil.Process(pid).create_time()).astimezone()
        return (
            f"process {pid} ({printable(shlex.join(psutil.Process(pid).cmdline()))}, since {since:%Y-%m-%d %H:%M:%S})"
        )
    return f"process {pid}"


def _locks(paths: RunPaths, when: str) -> dict[str, Path]:
    """What a run's tasks and services hold, by who they are."""
    tasks = {path: path.name.removeprefix("writer.").removesuffix("lock") for path in paths.writer_locks()}
    held = {f"{name.removesuffix('.') or TRAINER}{when}": path for path, name in tasks.items()}
    return held | {f"{task} service{when}": paths.service_lock(task) for task in SERVICES}


def _pids(path: Path) -> list[int]:
    """Who has `path` open."""
    found = []
    for fds in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(fd.readlink() == path for fd in fds.iterdir()):
                found.append(int(fds.parent.name))
    return found


# -- what is dead ----------------------------------------------------------------------------------------------
def clear_run_dir(paths: RunPaths, lock: FileLock) -> None:
    """Removes stale sockets, heartbeats, locks and last words.

    Our lock stays, and so do a file in a socket's place, and what tells whose lock on a `dataset.cache` a killed attempt has left.
    """
    odd = {path for path in paths.run_dir.glob("*.sock") if not stat.S_ISSOCK(path.lstat().st_mode)}
    remove_run_files(paths, keep=frozenset({lock.path, *odd, *paths.run_dir.glob("caches.*.json")}))


def _clear_other_run_dir(paths: RunPaths) -> None:
    """What a killed run has left that ran with another runtime directory: detached, say."""
    with contextlib.suppress(OSError):
        remove_run_files(paths)
        paths.run_dir.rmdir()


def remove_run(paths: RunPaths, opened: Opened, keep_memory: bool) -> None:
    """The last act of a clean end: nothing of the run is left but what is in the logdir.

    `keep_memory`: snapshots that could not be saved stay for the next launch.  Killed in between: the next launch
    clears the rest.
    """
    if not keep_memory or is_memory_empty(paths):
        remove_shm_files(paths)
    if not keep_memory and not paths.is_member:
        remove_staged(paths.home)  # a last one may be of the step that is on disk, and so never saved
    clear_run_dir(paths, opened.lock)
    LeaseFile(paths).remove(opened.lease.run)
    opened.heirs.let_go()
    opened.lock.release()
    for place in opened.places:
        place.release_directory()
    remove_dirs(paths)  # one that is not empty stays: another launch may have come in already


def _last_incarnation(paths: RunPaths, before: RunFile | None) -> int:
    """The highest attempt of any task that the logdir has seen, even where run.json was lost."""
    numbers = [before.incarnation if before is not None else 0]
    for directory, pattern in (
        (paths.logs, rf"(?:{'|'.join(PROGRAM_ROLES)})(?:\.\d+)?\.{NUMBER}\.log"),
        (paths.crashes, rf"(?:.*\.)?{NUMBER}\.json"),
    ):
        with contextlib.suppress(OSError):
            numbers += [int(m[1]) for path in directory.iterdir() if (m := re.fullmatch(pattern, path.name))]
    return max(numbers)


def wait_unless_stopped(signals: Signals, seconds: float) -> None:
    """Waits that long, or less; Unwanted if a signal asks for the end.  There is no program yet to pass another one on to."""
    if not signals.wait(seconds):
        return
    for asked in signals.take_requests():
        if isinstance(asked, StopAsked):
            raise Unwanted(asked.source)
        if default_of(asked.number) is not Default.GO_ON:
            raise Unwanted(signal.Signals(asked.number).name)


class Unwanted(UserError):
    """A signal came before anything was started."""

    def __init__(self, source: str) -> None:
        super().__init__(f"{source}: stopped before anything was started", exit_code=exit_codes.RESUMABLE)


def make_lease(start: Start, what: str, wall_s: float) -> Lease:
    """Ours, of the logdir; Unwanted if the program that we are to observe has ended."""
    try:
        process = identify(start.observes or os.getpid())
    except psutil.NoSuchProcess:
        raise Unwanted("the program has ended") from None
    return Lease(
        run=start.run,
        place=find_place(),
        pid=process.pid,
        started=process.started,
        what=what,
        since=wall_s,
        renewed=wall_s,
    )
