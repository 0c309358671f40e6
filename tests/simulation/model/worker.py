"""A task beside the trainer, in a run of several: it trains until it is told to stop, and leaves no state."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.outcome import Exit
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.messages import FirstStepDone, Hello, StopTraining
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from tests.simulation.model.network import SimClient
from tests.simulation.model.processes import Process

if TYPE_CHECKING:
    from tests.simulation.model.world import World

STEP_S = 0.2


class Worker(Process):
    def __init__(self, world: World, task: TaskId, incarnation: int, run: str) -> None:
        super().__init__(world, task, incarnation)
        self.step = -1
        self._client = SimClient(
            world.network, world.socket(WATCHDOG), Address(run, task, incarnation), world.clock, self.wake
        )
        self._begins_s = world.clock.now_s + world.program.import_s
        self.wake(STEP_S)

    def beat(self) -> Heartbeat:
        phase = Phase.STEP if self.step >= 0 else Phase.IMPORT
        return Heartbeat(phase, self.step, max(self.step, 0), self.world.clock.now_s, 0.0)

    def hear_signal(self, number: int) -> None:
        if number == signal.SIGTERM:
            self._stop()

    def turn(self) -> None:
        if self.is_orphan:
            self._stop()
        elif self._client.tick():
            self._client.send_reliable(Hello(self.pid))
            self._client.tick()
        while not self.is_dead and (received := self._client.receive()) is not None:
            self._client.acknowledge(received)
            if isinstance(received.body, StopTraining):
                self._stop()
        now_s = self.world.clock.now_s
        if not self.is_dead and now_s >= self._begins_s:
            self._begins_s = now_s + STEP_S
            self.step += 1
            if self.step == 1:
                self._client.send_reliable(FirstStepDone(0, "fresh", "its chief", 1, now_s))
        self.wake(STEP_S)

    def _stop(self) -> None:
        self.die(Exit(75, None), "itself")

    def let_go(self) -> None:
        self._client.close()
