"""Wait for what a killed watchdog's run has left alive, and end what does not end by itself.

Used by open_run.py. We call a process an orphan if a killed run's program has left it. An orphan
has the run's id (its mark) in its environment, and is in our mount namespace. A run at the same
path in another container, or with a private /tmp, has another id.

This module touches only processes of our user, and none of this launch's ancestors. It ends an
orphan only if nothing else of that run holds the logdir: no watchdog, no service, and no program
that still has time to save and end by itself.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import psutil

from procsv.base.clock import Clock
from procsv.base.errors import LogdirLocked
from procsv.base.identity import TRAINER
from procsv.base.journal.file import read_program_pids
from procsv.base.run.lease import Lease, LeaseFile
from procsv.base.run.paths import RunPaths
from procsv.base.run.run_file import RunFile
from procsv.base.service_table import SERVICES
from procsv.base.system.locks import DirectoryLock, FileLock
from procsv.base.system.process_state import has_open
from procsv.base.system.processes import ExternalProcess
from procsv.base.system.tree_mark import find_marked
from procsv.base.terminal import printable
from procsv.watchdog.edge.opening.run_lock import TIDYING_S_MAX, OpenRequest, in_use

LEFTOVER_MARGIN_S = 15.0  # in addition to the grace period: the services of a killed run end after its trainer
ENDING_S_MAX = 10.0  # in addition to the grace period and the margin: orphans that we end need time to disappear
KILL_S = 2.0  # from SIGTERM to SIGKILL


def wait_for_leftovers(request: OpenRequest, before: RunFile | None, heirs: DirectoryLock) -> None:
    """Wait until nothing of the earlier run is alive, and take the logdir's lock, `heirs`.

    The trainer and the services of a killed watchdog save and end by themselves. The program's
    other processes are ended. LogdirLocked if a watchdog is alive, or if processes remain for too
    long.
    """
    paths, clock = request.paths, request.clock
    orphans = Orphans(paths, clock, request.say)
    # Whether an earlier watchdog was killed: run.json has no end of its run, or there is a journal but no run.json.
    began_s, was_killed = clock.monotonic(), paths.journal.exists() if before is None else before.ended_at is None
    locks = _locks(paths, "")
    if before is not None and before.run_dir != str(paths.run_dir):  # the previous run had another runtime directory
        locks |= _locks(before.paths, " (before)")
    said = False
    while True:
        has_heirs = not heirs.try_acquire()
        if has_heirs:
            _refuse_if_run(paths, request.us, before)
        held = {who: path for who, path in locks.items() if FileLock(path).is_held()}
        was_killed |= bool(held)
        limit_s = request.grace_s + LEFTOVER_MARGIN_S if was_killed else TIDYING_S_MAX
        late_s = clock.monotonic() - began_s - limit_s
        left = orphans.end_orphans(heirs.holders if has_heirs else lambda: None, late_s > 0)
        if not has_heirs and not held and not left:
            return
        was_killed |= bool(left)
        if late_s > 0 or not said:
            alive = {*left, *(heirs.holders() if has_heirs else ())}
            names = ", ".join(_names(held, sorted(alive))) or "a process that cannot be seen"
        if late_s > (ENDING_S_MAX if orphans.is_ending else 0):
            raise LogdirLocked(
                f"processes of an earlier launch in {paths.logdir} still run: {names}; end them first"
                if was_killed
                else f"the logdir {paths.logdir} is locked by {names}; end that first"
            )
        if not said and (held or has_heirs or orphans.has_program):
            said = True
            request.say(
                f"the previous watchdog was killed; waiting for its processes to save and exit: {names}"
                if was_killed
                else f"waiting for {names}, which locks {paths.logdir}"
            )
        for path in held.values():
            if not path.name.startswith("writer"):  # we do not wake a stopped trainer: a service ends it
                FileLock(path).wake()
        request.wait(0.05)


def _refuse_if_run(paths: RunPaths, us: Lease, before: RunFile | None) -> None:
    """Raise LogdirLocked if the run that holds the logdir's lock is alive, as its lease shows."""
    lease = LeaseFile(paths).holder()
    if lease is None or lease.process == us.process:  # the lease is from an earlier run of this process
        return
    if before is not None and before.run == lease.run and before.ended_at is not None:
        return  # run.json says that this run is over, so its watchdog is only about to exit
    if lease.place != us.place or lease.process.is_alive():
        raise LogdirLocked(in_use(paths, lease, us.place))


def _names(held: dict[str, Path], heirs: list[int]) -> list[str]:
    """Name the processes that are alive, for people, such as "trainer (process 12)"."""
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
    """Return the lock files of a run's tasks and services, by the name of the holder and `when`."""
    tasks = {path: path.name.removeprefix("writer.").removesuffix("lock") for path in paths.writer_locks()}
    held = {f"{name.removesuffix('.') or TRAINER}{when}": path for path, name in tasks.items()}
    return held | {f"{task} service{when}": paths.service_lock(task) for task in SERVICES}


def _pids(path: Path) -> list[int]:
    """Return the processes that have `path` open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if has_open(int(process.name), path):
                found.append(int(process.name))
    return found


class Orphans:
    """The processes that a killed run's programs have left alive, in any session.

    They are found by the mark that they have inherited: the run's id in their environment.
    """

    def __init__(self, paths: RunPaths, clock: Clock, say: Callable[[str], None]) -> None:
        self._paths, self._clock, self._say = paths, clock, say
        self._told: dict[int, float] = {}  # pid -> when it was asked to end
        self.has_program = False  # whether one of the orphans is the main process of a program

    @property
    def is_ending(self) -> bool:
        """Whether any orphan was asked to end."""
        return bool(self._told)

    def end_orphans(self, heirs: Callable[[], list[int] | None], is_late: bool) -> list[int]:
        """End the orphans, if no other process may still need them. Return the pids that are alive.

        A program may need them while it saves and ends by itself; `is_late` says that its time is
        over. A process without the mark that holds the logdir's lock is not an orphan, and may need
        them, too. `heirs` returns the holders of that lock; None if the lock is free.
        """
        marked = find_marked(self._paths.id)
        try:
            programs = read_program_pids(self._paths.journal, of_last_launch=True) if marked else set()
            self.has_program = any(one.pid in programs or (not programs and _is_leader(one.pid)) for one in marked)
            if marked and (is_late or not self.has_program) and _are_all_of(marked, heirs()):
                self._end(marked)
            return sorted(one.pid for one in marked)
        finally:
            for one in marked:
                one.close()

    def _end(self, orphans: list[ExternalProcess]) -> None:
        now_s, news = self._clock.monotonic(), [one for one in orphans if one.pid not in self._told]
        if news:
            pids = sorted(one.pid for one in news)
            self._say(f"ending the processes that the previous program left running: {_list(pids)}")
        for one in news:
            self._told[one.pid] = now_s
            one.signal_tree(signal.SIGTERM)
        for one in orphans:
            if now_s - self._told[one.pid] > KILL_S:
                one.signal_tree(signal.SIGKILL)


def _are_all_of(marked: list[ExternalProcess], heirs: list[int] | None) -> bool:
    """Whether only orphans hold the logdir's lock; False if we cannot see who holds it."""
    return heirs is None or (bool(heirs) and set(heirs) <= {one.pid for one in marked})


def _is_leader(pid: int) -> bool:
    """Whether the process leads a session, as the process of a program does."""
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid) == pid
    return False


def _list(pids: list[int]) -> str:
    return ", ".join(map(str, pids))
