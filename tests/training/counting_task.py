"""A task whose steps pass a point where they can be paused, for the tests of step holds."""

from __future__ import annotations

import threading

from procsv.training.runtime.step_gate import StepGate
from tests.support.programs import DEADLINE_S


class CountingTask:
    """Trains on a thread: each step increments two counters, one after the other."""

    def __init__(self, gate: StepGate) -> None:
        gate.open_steps()
        self.counted, self.ended = [0, 0], threading.Event()
        self.has_stepped, self.goes = threading.Event(), threading.Event()
        self.goes.set()  # while it is clear, a step waits between the two
        self._step = gate.guard(self._count)
        self._thread = threading.Thread(target=self._train)
        self._thread.start()

    def _train(self) -> None:
        while not self.ended.is_set():
            self._step()
            self.has_stepped.set()

    def _count(self) -> None:
        self.counted[0] += 1
        self.ended.wait(0.0001)
        self.goes.wait()
        self.counted[1] += 1

    def wait_step(self, count: int = 1) -> None:
        """Wait until that many steps end from now on. The first may have been under way."""
        for _ in range(count):
            self.has_stepped.clear()
            assert self.has_stepped.wait(DEADLINE_S), "it makes no step"

    def end(self) -> None:
        self.ended.set()
        self.goes.set()
        self._thread.join(DEADLINE_S)
