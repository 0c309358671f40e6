"""Schedule the faults that the watchdog injects.

Used by injector.py. Pure: time and step are arguments. The trainer itself carries out its faults at
a step (procsv/training/snapshots/step_faults.py), because the watchdog learns of a step too late.
"""

from __future__ import annotations

from procsv.base.identity import WATCHDOG
from procsv.faults.plan import Plan, PlannedFault, interval_s


class Schedule:
    def __init__(self, plan: Plan, done: list[int], now_s: float) -> None:
        """`done`: how often each fault of the plan has happened in this logdir. `now_s`: when this
        launch starts.
        """
        self._plan, self._done = plan, list(done)
        self._due_s: dict[int, float] = {}
        for number, fault in enumerate(plan.faults):
            if fault.executor == WATCHDOG:
                self._plan_next(number, fault, now_s)

    def _plan_next(self, number: int, fault: PlannedFault, now_s: float) -> None:
        self._due_s.pop(number, None)
        if fault.is_spent(self._done[number]):
            return
        if fault.after_s >= 0:
            self._due_s[number] = now_s + fault.after_s
        elif fault.every_s > 0:
            self._due_s[number] = now_s + interval_s(self._plan, number, self._done[number])

    def due(self, now_s: float, step: int) -> list[tuple[int, PlannedFault]]:
        """Return the faults that are due now, with their numbers in the plan."""
        return [
            (number, fault)
            for number, fault in enumerate(self._plan.faults)
            if self._is_due(number, fault, now_s, step)
        ]

    def _is_due(self, number: int, fault: PlannedFault, now_s: float, step: int) -> bool:
        done = self._done[number]
        if fault.executor != WATCHDOG or fault.is_spent(done):
            return False
        if fault.by_step:
            return step >= fault.due_step(done)
        return now_s >= self._due_s[number]

    def happened(self, number: int, now_s: float) -> None:
        self._done[number] += 1
        self._plan_next(number, self._plan.faults[number], now_s)

    def next_due_s(self) -> float | None:
        """Return when the next fault is due by the clock; None if no fault is due by the clock."""
        return min(self._due_s.values(), default=None)
