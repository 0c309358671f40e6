"""End a hung process: dump its stacks first, then SIGABRT, then SIGKILL to its whole tree.

Used by trainer.py for a trainer, by services.py for a service. Pure. We call the steps a ladder.
These are the defaults, in seconds since the hang was found:

     0.0    hang_detected is journaled; a signal makes faulthandler write the main thread's stack.
            faulthandler is written in C, so it works even while a thread holds the GIL
     2.5    another signal makes it write all stacks, which may crash the process (BY_ITS_DUMP)
     5.0    SIGABRT: faulthandler writes once more, and the process dies
    15.0    SIGKILL to the process tree
    45.0    a trainer that still exists is unkillable (stopping.py): no other one is started

A stopped process (SIGSTOP) cannot handle signals. It gets the dump signals, SIGABRT and SIGCONT
together, 5 s after the hang was found, so it runs only to write its stacks and die. SIGKILL follows
at 15 s as above.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Generic, TypeVar

from procsv.base.identity import TaskId
from procsv.base.journal import entries
from procsv.base.outcome import Exit
from procsv.base.signals import DUMP_SIGNAL, MAIN_DUMP_SIGNAL
from procsv.base.units import show_duration
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.watchdog.core.actions import Action, Say, Signal, WriteEntry
from procsv.watchdog.core.hangs.service_liveness import ServiceLiveness
from procsv.watchdog.core.hangs.stack_parser import where_it_stood
from procsv.watchdog.core.hangs.trainer_liveness import Hang, Liveness

DUMPS = (MAIN_DUMP_SIGNAL, DUMP_SIGNAL)
# Signals of ours that can end the process. A dump signal does so until the bootstrap has armed faulthandler.
ENDED_BY_US = (signal.SIGABRT, signal.SIGKILL, *DUMPS)
# Signals that end the process if the dump of all stacks crashes it: faulthandler reads the frames of running threads.
BY_ITS_DUMP = (signal.SIGSEGV, signal.SIGBUS)


L = TypeVar("L", Liveness, ServiceLiveness)  # for a trainer, or for a service


@dataclass(slots=True)
class HangEscalation(Generic[L]):
    """Whether the process of a task or service hangs, and which steps have been taken to end it."""

    task: TaskId
    liveness: L
    launch: LaunchSettings
    hang: Hang | None = None
    was_stopped: bool = False  # by SIGSTOP, when the hang was found
    _found_s: float = 0.0  # when the hang was reported
    # When the next steps are due: the dump of all stacks, SIGABRT, SIGKILL. None: not planned, or taken.
    _dump_s: float | None = None
    _abort_s: float | None = None
    _kill_s: float | None = None
    _watches: bool = False  # between `start_watch` and `end_watch`
    _was_dumped: bool = False  # a dump of all its stacks was requested

    def start_watch(self, now_s: float) -> None:
        self.liveness.start_watch(now_s)
        self.hang, self._watches, self._was_dumped = None, True, False
        self._dump_s = self._abort_s = self._kill_s = None

    def end_watch(self) -> None:
        """Stop watching: the process is dead, or was asked to stop. A stop has its own deadline."""
        self._watches = False
        self._dump_s = self._abort_s = self._kill_s = None

    def is_found(self, beat: Heartbeat | None, is_stopped: bool, now_s: float, waits_for_disk: bool = False) -> bool:
        """Read the heartbeat. Return True once, when the process is found to hang."""
        if not self._watches or self.hang is not None:
            return False
        self.liveness.read_heartbeat(beat, now_s, waits_for_disk)
        self.hang, self.was_stopped = self.liveness.hang(now_s), is_stopped
        return self.hang is not None

    def goes_on(self, beat: Heartbeat | None, now_s: float) -> float | None:
        """Check whether a hung process that was left alone makes progress again.

        If so, return how many seconds it made none; otherwise None.
        """
        hang = self.hang
        if not self._watches or hang is None:
            return None
        self.liveness.read_heartbeat(beat, now_s)
        if self.liveness.hang(now_s) is not None:
            return None
        self.hang = None
        return hang.seconds + now_s - self._found_s

    def report_hang(self, incarnation: int, now_s: float, then: str) -> list[Action]:
        """Report the hang to the journal and the user. `then`: what procsv does about it."""
        hang = self.hang
        assert hang is not None, "a report without a hang"
        self._found_s = now_s
        phase, seconds = hang.phase.name.lower(), round(hang.seconds, 1)
        detected = entries.HangDetected(phase=phase, seconds=seconds, step=hang.step)
        who = f"{self.task} {incarnation}" if self.task.runs_program else f"the {self.task} service"
        text = f"{who} hangs: {self._what()}; {then}"
        return [WriteEntry(detected, self.task, incarnation), Say(text, is_bad=True)]

    def start_escalation(self, incarnation: int, now_s: float) -> list[Action]:
        """Report the hang, and take the first step of the ladder."""
        hang = self.hang
        assert hang is not None, "a ladder without a hang"
        if not self.was_stopped:  # a stopped process is not a slow one, so it does not double the limit
            self.liveness.count_hang(hang)
        wanted: list[Action] = self.report_hang(incarnation, now_s, "ending it")
        self._abort_s = now_s + self.launch.hang_abort_s
        self._dump_s = self._abort_s if self.was_stopped else now_s + self.launch.hang_abort_s / 2.0
        if not self.was_stopped:
            wanted.append(Signal(self.task, incarnation, MAIN_DUMP_SIGNAL))
        return wanted

    def climb(self, incarnation: int, now_s: float) -> list[Action]:
        """Take the steps of the ladder that are due, except SIGKILL (`is_to_be_killed`)."""
        numbers: list[int] = []
        if self._dump_s is not None and now_s >= self._dump_s:
            self._dump_s, self._was_dumped = None, True
            numbers += DUMPS if self.was_stopped else (DUMP_SIGNAL,)
        if self._abort_s is not None and now_s >= self._abort_s:
            self._abort_s, self._kill_s = None, now_s + self.launch.hang_kill_s
            numbers += (signal.SIGABRT, signal.SIGCONT)
        return [Signal(self.task, incarnation, number) for number in numbers]

    def is_to_be_killed(self, now_s: float) -> bool:
        """Return True once, when SIGKILL is due; otherwise False."""
        if self._kill_s is not None and now_s >= self._kill_s:
            self._kill_s = None
            return True
        return False

    def next_due_s(self) -> float | None:
        return min((due_s for due_s in (self._dump_s, self._abort_s, self._kill_s) if due_s is not None), default=None)

    def evidence(self, exit: Exit, stacks: str) -> str:
        """Describe the hang that the process was ended for; "" if its exit has another cause."""
        ours = (*ENDED_BY_US, *BY_ITS_DUMP) if self._was_dumped else ENDED_BY_US
        if self.hang is None or exit.signal not in ours:
            return ""
        where = where_it_stood(stacks)
        return self._what() + (f"; its main thread was in {where}" if where else "") + f"; ended with {exit}"

    def name_failure(self, stacks: str) -> str:
        """Name the hang; "" without a hang.

        A hang at the same place always gets the same name, so that repeats can be counted.
        """
        if self.hang is None:
            return ""
        where = where_it_stood(stacks)
        return f"a hang in phase {self.hang.phase.name.lower()}" + (f", in {where}" if where else "")

    def stood_still_s(self, now_s: float) -> float:
        """Return how long the hung process has made no progress; 0.0 if it does not hang."""
        return self.hang.seconds + now_s - self._found_s if self.hang is not None else 0.0

    def _what(self) -> str:
        assert self.hang is not None
        phase, limit = self.hang.phase.name.lower(), show_duration(self.hang.limit_s)
        frozen = ", the process being stopped (SIGSTOP)" if self.was_stopped else ""
        if self.hang.detail:
            return self.hang.detail + frozen
        return f"no progress for {show_duration(self.hang.seconds)} in phase {phase}, which may take {limit}{frozen}"
