"""A task beside the trainer, in a run of several: it trains until it is told to stop.

Its snapshots lie beside the trainer's, in slots of its own, as those of a parameter server would; they are in no checkpoint.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.outcome import Exit
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.messages import FirstStepDone, Hello, StopTraining
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from tests.simulation.model.memory import SimArena
from tests.simulation.model.network import SimClient
from tests.simulation.model.processes import Process

if TYPE_CHECKING:
    from tests.simulation.model.world import World

FOREIGN_STEP = 10**6  # far above any of the trainer's: restored, it would be seen
STEP_S = 0.2
SLOTS = 2


class Worker(Process):
    def __init__(self, world: World, task: TaskId, incarnation: int, run: str) -> None:
        super().__init__(world, task, incarnation)
        self.step = -1
        self._me = Address(run, task, incarnation)
        self._pool: SimArena | None = None
        self._client = SimClient(world.network, world.socket(WATCHDOG), self._me, world.clock, self.wake)
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
            self._take_snapshot()
            if self.step == 1:
                self._client.send_reliable(FirstStepDone(0, "fresh", "its chief", 1, now_s))
        self.wake(STEP_S)

    def _take_snapshot(self) -> None:
        if self._pool is None:
            self._pool = SimArena(self.world.memory, self._me, self.pid, self.world.program.plan)
            self._pool.reserve(SLOTS, None)
        slot = self._pool.begin_snapshot()
        assert slot is not None, "another task writes or reads this one's slots"
        self._pool.publish(slot, self.step + 1, FOREIGN_STEP + self.step, value=0)

    def _stop(self) -> None:
        self.die(Exit(75, None), "itself")

    def let_go(self) -> None:
        self._client.close()
