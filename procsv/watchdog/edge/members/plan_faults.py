"""Faults of the coordinator's plan that are for this machine: its task is frozen, or the whole of it dies, stands still or is cut off.

Used by member_loop.py.  When they are due, and that each happens once, is the coordinator's business (edge/faults/injector.py).
"""

from __future__ import annotations

from collections.abc import Callable

from procsv.base.clock import Clock
from procsv.base.dues import first_due_s
from procsv.ipc.messaging.member_messages import FreezeTask, StrikeMachine
from procsv.watchdog.edge.console import Console
from procsv.watchdog.edge.faults.freezes import Freezes
from procsv.watchdog.edge.faults.own_machine import OwnMachine
from procsv.watchdog.edge.processes import Processes


class PlanFaults:
    def __init__(
        self, processes: Processes, console: Console, clock: Clock, forget: Callable[[], None] = lambda: None
    ) -> None:
        """`forget`: removes what the task's run has not put into the memory of this machine."""
        self._processes, self._console, self._clock = processes, console, clock
        self._freezes, self._machine = Freezes(), OwnMachine(processes.start.paths, forget)

    def carry_out(self, fault: FreezeTask | StrikeMachine) -> None:
        """Does not return from the death of the machine."""
        now_s = self._clock.monotonic()
        match fault:
            case FreezeTask(task, incarnation, seconds):
                if (running := self._processes.find(task, incarnation)) is not None:
                    self._freezes.freeze(running, now_s + seconds)
            case StrikeMachine(action, seconds):
                self._do(lambda: self._machine.befall(action, seconds, now_s))

    def end_expired(self, now_s: float) -> None:
        self._freezes.end_expired(now_s)
        self._do(lambda: self._machine.mend_expired(now_s))

    def next_due_s(self) -> float | None:
        return first_due_s((self._freezes.next_due_s(), self._machine.next_due_s()))

    def close(self) -> None:
        """Ends a cut that lasts still."""
        self._do(self._machine.mend)

    def _do(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            self._console.say(f"a fault of the plan failed: {error}", is_bad=True)
