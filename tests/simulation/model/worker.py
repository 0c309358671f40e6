"""A task beside the trainer: it trains by itself until it is asked to stop.

Its snapshots are in slots of its own beside the trainer's, as a parameter server's would be, and in
no checkpoint.
"""

from __future__ import annotations

from procsv.base.identity import WATCHDOG
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.ipc.shm.heartbeat import Phase
from tests.simulation.model.memory import SimArena
from tests.simulation.model.program_process import Doing, ProgramProcess

FOREIGN_STEP = 10**6  # far above any step of the trainer, so that a wrong restore would show
STEP_S = 0.2
SLOTS = 2


class Worker(ProgramProcess):
    _pool: SimArena | None = None

    def _main(self) -> Doing:
        yield self._import_s
        self.phase = Phase.STEP
        while self._stop_reason is None:
            self.step += 1
            self._read_step(self.world.clock.now_s)
            self._take_snapshot()
            if self.step == 1:
                self.is_ready = True
                self._tell(WATCHDOG, FirstStepDone(0, "fresh", "its chief", 1, self.world.clock.now_s))
            yield STEP_S

    def _take_snapshot(self) -> None:
        if self._pool is None:
            me = Address(self.run_id, self.task, self.incarnation)
            self._pool = SimArena(self.world.memory, me, self.pid, self.world.program.plan)
            self._pool.reserve(SLOTS, None)
        slot = self._pool.begin_snapshot()
        assert slot is not None, "another task writes or reads this one's slots"
        self._pool.publish(slot, self.step + 1, FOREIGN_STEP + self.step, value=0)
