"""Faults of a plan that the trainer carries out on itself between two steps.

training_run.py uses it at the boundary.  A fault that a step triggers happens here, at that very
step.  The journal entry is written before the fault, which may be a kill.  So the next attempt
knows that the fault has happened.  The watchdog sends timed faults as messages.
Without a plan this costs nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from procsv.base.identity import TRAINER
from procsv.base.journal import entries
from procsv.base.journal.file import Journal, read_journal
from procsv.faults.pending import Injected, carry_out
from procsv.faults.plan import Plan, PlannedFault, count_done

if TYPE_CHECKING:
    from procsv.base.clock import Clock
    from procsv.ipc.messaging.start import Start


class StepFaults:
    """The plan's faults for this incarnation.

    The training thread calls `carry_out_due` after each step.
    """

    def __init__(self, start: Start, clock: Clock, injected: Injected, write_step: Callable[[int], None]) -> None:
        """`write_step` writes the step into the heartbeat; after a kill, the journal quotes it."""
        self._start, self._clock, self._injected, self._write_step = start, clock, injected, write_step
        plan = Plan.decode(start.settings.plan)
        done = count_done(plan, read_journal(start.paths.journal))
        self._left = {
            number: (fault, times)
            for number, (fault, times) in enumerate(zip(plan.faults, done, strict=True))
            if fault.executor == TRAINER and not fault.is_spent(times)
        }

    @property
    def is_watching(self) -> bool:
        """Whether a fault waits for a step."""
        return bool(self._left) or self._injected.is_waiting

    def carry_out_due(self, step: int) -> None:
        """Carries out the faults due at `step`.

        It raises, ends the process, or never returns, as the plan says.
        """
        self._injected.moment()
        for number, (fault, done) in list(self._left.items()):
            if step >= fault.due_step(done):
                del self._left[number]
                if not fault.is_spent(done + 1):
                    self._left[number] = (fault, done + 1)
                self._carry_out(fault, step)

    def _carry_out(self, fault: PlannedFault, step: int) -> None:
        journal = Journal(self._start.paths.journal, self._clock)
        journal.append(entries.Fault(fault=str(fault), step=step), TRAINER, self._start.incarnation)
        journal.close()
        self._write_step(step)
        match fault.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                signal.raise_signal(signal.SIGSEGV)
            case action:
                carry_out(action, fault.number)
