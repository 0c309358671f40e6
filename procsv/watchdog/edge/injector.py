"""Carry out planned faults on processes, messages and the disk.

event_loop.py calls the Injector in every turn. core/fault_schedule.py decides which faults are due;
a trainer carries out its own faults at a step. Each fault is journaled before it is carried out. So
if the watchdog kills itself, the next launch knows that this fault has happened.
"""

from __future__ import annotations

import glob
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from procsv.base.errors import ProcsvBug
from procsv.base.identity import TaskId
from procsv.base.journal import entries
from procsv.base.journal.file import read_journal
from procsv.base.outcome import Exit
from procsv.base.run.paths import RunPaths
from procsv.base.service_table import SERVICES
from procsv.faults.plan import (
    Plan,
    PlannedFault,
    count_done,
    find_fault,
)
from procsv.ipc.messaging.watchdog_messages import Inject
from procsv.watchdog.core.fault_schedule import Schedule
from procsv.watchdog.edge.environment import FaultReach, RemoteHost
from procsv.watchdog.edge.freezes import Freezes
from procsv.watchdog.host.processes import Processes, RunningChild

_WAKE = "import os, signal, sys, threading\nthreading.Event().wait(float(sys.argv[2]))\nos.kill(int(sys.argv[1]), signal.SIGCONT)"
_NUMBER = re.compile(r"-(\d+)\.index$")
_SIGNALS = {"kill": signal.SIGKILL, "segfault": signal.SIGSEGV}


class Injector:
    def __init__(
        self,
        plan: Plan,
        paths: RunPaths,
        processes: Processes,
        remote: RemoteHost | None,
        reach: FaultReach,
        now_s: float,
    ) -> None:
        self._plan, self._paths, self._processes, self._remote, self._reach = plan, paths, processes, remote, reach
        done = count_done(plan, read_journal(paths.journal))
        self._schedule = Schedule(plan, done, now_s)
        self._freezes = Freezes()

    def next_due_s(self, now_s: float) -> float | None:
        """Return when the next fault is due by the clock; None if none is.

        Faults that wait for a process or a step are checked in every turn of the loop.
        """
        dues = (self._schedule.next_due_s(), self._freezes.next_due_s())
        return min((due_s for due_s in dues if due_s is not None and due_s > now_s), default=None)

    def inject_due_faults(self, now_s: float, step: int) -> None:
        """Carry out the faults that are due. A fault waits until its process exists."""
        self._freezes.end_expired(now_s)
        for number, fault in self._schedule.due(now_s, step):
            act = self._find(fault, now_s)
            if act is None:
                continue
            target = TaskId.parse(fault.target)
            self._schedule.happened(number, now_s)
            incarnation = self._incarnation(target)
            self._reach.journal(entries.Fault(fault=str(fault), step=step), target, incarnation)
            try:
                act()
            except OSError as error:  # the disk of the checkpoint has a real error
                skipped = entries.FaultSkipped(fault=str(fault), why=str(error))
                self._reach.journal(skipped, target, incarnation)
                self._reach.say(f"skipping the fault '{fault}': {error}")

    def _incarnation(self, target: TaskId) -> int:
        running = self._processes.running.get(target)
        return running.incarnation if running is not None else self._reach.attempt(target) or 1

    def fault_behind(self, task: TaskId, incarnation: int, exit: Exit) -> str:
        """Return the fault that ended this process; "" if something else ended it.

        Any process may have carried out the fault: the journal has the faults of all.
        """
        return find_fault(read_journal(self._paths.journal), task, incarnation, exit) if self._plan.faults else ""

    def _find(self, fault: PlannedFault, now_s: float) -> Callable[[], object] | None:
        """Return a function that carries out `fault`; None while its process does not exist."""
        match fault.target:
            case "logdir":
                return self._find_for_logdir(fault)
            case "watchdog":
                return lambda: _to_ourselves(fault)
            case name:
                task = TaskId.parse(name)
                if self._remote is not None and self._remote.hosts(task):
                    return self._find_elsewhere(fault, task, self._remote, self._reach.attempt(task))
                running = self._processes.running.get(task)
                return None if running is None else self._find_for_process(fault, task, running, now_s)

    # -- tasks and services --------------------------------------------------------------------------------
    def _find_elsewhere(
        self, fault: PlannedFault, task: TaskId, remote: RemoteHost, incarnation: int
    ) -> Callable[[], object] | None:
        """Return a function that lets another machine's launch carry out the fault there.

        None if the task is not running.
        """
        if not incarnation:
            return None
        if fault.action == "preempt":
            return lambda: self._reach.preempt(fault.number, task)
        if fault.action == "stop":
            return lambda: remote.freeze(task, incarnation, fault.number)
        if fault.action in _SIGNALS:
            return lambda: remote.signal(task, incarnation, _SIGNALS[fault.action])
        return lambda: self._reach.tell(task, Inject(fault.action, fault.number))  # type: ignore[arg-type]

    def _find_for_logdir(self, fault: PlannedFault) -> Callable[[], object] | None:
        if fault.action == "corrupt":
            return lambda: corrupt_newest(self._processes.start.checkpoint_dir, fault.how)
        if fault.action != "fill":
            raise ProcsvBug(f"no case for the fault {fault.action} of a logdir")
        if any(self._processes.running.get(task) is None for task, spec in SERVICES.items() if spec.is_critical):
            return None
        return lambda: self._fill(fault.number)

    def _fill(self, seconds: float) -> None:
        for task in SERVICES.keys() & self._processes.running.keys():
            self._reach.tell(task, Inject("fill", seconds))

    def _find_for_process(
        self, fault: PlannedFault, task: TaskId, running: RunningChild, now_s: float
    ) -> Callable[[], object]:
        if fault.action == "preempt":
            return lambda: self._reach.preempt(fault.number, task)
        if fault.action == "stop":
            return lambda: self._freezes.freeze(running, now_s + fault.number)
        if fault.action in _SIGNALS:
            return lambda: running.child.signal(_SIGNALS[fault.action])
        return lambda: self._reach.tell(task, Inject(fault.action, fault.number))  # type: ignore[arg-type]


def _to_ourselves(fault: PlannedFault) -> None:
    """Carry out a fault on the watchdog itself.

    If this kills the watchdog, the trainer saves and ends, and the next launch resumes.
    """
    match fault.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "preempt":
            os.kill(os.getpid(), signal.SIGTERM)
        case "stop":
            # Another process must wake us. That process belongs to no run, and ends by itself.
            argv = [sys.executable, "-S", "-c", _WAKE, str(os.getpid()), str(fault.number)]
            subprocess.Popen(argv, start_new_session=True, stdin=subprocess.DEVNULL)
            os.kill(os.getpid(), signal.SIGSTOP)


def newest_files(logdir: Path) -> list[Path]:
    """Return the index and data files of the checkpoint with the highest step, if there is one."""
    found = [(int(match[1]), path) for path in logdir.glob("*.index") if (match := _NUMBER.search(path.name))]
    if not found:
        return []
    index = max(found)[1]
    return [index, *sorted(logdir.glob(f"{glob.escape(index.name.removesuffix('.index'))}.data-*"))]


def corrupt_newest(logdir: Path, how: str) -> Path | None:
    """Damage the last data file of the newest checkpoint, as a bad disk would.

    Return the path of that file; None if there is no checkpoint. `how`: "delete" or "truncate";
    anything else changes one bit.
    """
    files = newest_files(logdir)
    if not files:
        return None
    victim = files[-1]
    if how == "delete":
        victim.unlink()
        return victim
    size = victim.stat().st_size
    if how == "truncate":
        with victim.open("r+b") as stream:
            stream.truncate(size // 2)
        return victim
    with victim.open("r+b") as stream:
        stream.seek(size // 2)
        byte = stream.read(1)
        stream.seek(size // 2)
        stream.write(bytes((byte[0] ^ 0x10,)) if byte else b"\x10")
    return victim
