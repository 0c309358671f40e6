"""A standby: it imports, waits, and becomes the next trainer or dies."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from procsv.base.identity import STANDBY
from procsv.base.outcome import Exit
from tests.simulation.model.processes import Process

if TYPE_CHECKING:
    from tests.simulation.model.world import World


class StandbyProcess(Process):
    """Calls `say` to report that it waits: its number, and the seconds that it took."""

    def __init__(self, world: World, number: int, say: Callable[[int, float], None]) -> None:
        super().__init__(world, STANDBY, number)
        self._say, self._has_said = say, False
        self._takes_s, self._since_s = world.program.import_s, self.born_s
        self.wake(self._takes_s)

    def turn(self) -> None:
        if self.is_orphan:
            self.die(Exit(0, None), "itself")
        elif not self._has_said:
            left_s = self._since_s + self._takes_s - self.world.clock.now_s
            if left_s > 0.0:
                self.wake(left_s)
                return
            self._has_said = True
            self._say(self.incarnation, self._takes_s)

    def import_more(self) -> None:
        self._has_said = False
        self._takes_s, self._since_s = self.world.program.import_s / 10, self.world.clock.now_s
        self.wake(self._takes_s)

    def hear_signal(self, number: int) -> None:
        """Die: it is to become the trainer, and the run ends. It has no handlers."""
        if number == signal.SIGTERM:
            self.die(Exit(None, number), "watchdog")

    def become_another(self) -> None:
        """Its process continues under another name."""
        self.is_dead = True
        if self._timer is not None:
            self._timer.cancel()
        self.world.processes.pop(self.pid, None)
