"""What every simulated process has: a pid, turns, locks that its death releases, and ways to be
killed or frozen.

A turn is one round of the real process's loop: it handles what has arrived and says when it wants
its next turn.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from procsv.base.identity import TaskId
from procsv.base.outcome import Exit
from procsv.base.system.processes import ExternalProcess
from tests.simulation.model.clock import Timer
from tests.simulation.model.disk import Killed

if TYPE_CHECKING:
    from tests.simulation.model.world import World

KILLED = Exit(None, signal.SIGKILL)
FOR_EVER_S = 1e9


class Process:
    """One process of the run. A subclass has its loop's body in `turn`."""

    def __init__(self, world: World, task: TaskId, incarnation: int, pid: int = 0) -> None:
        self.world, self.task, self.incarnation = world, task, incarnation
        self.pid = pid or world.new_pid()
        self.is_dead = False
        self.holds_lock = False  # its own: run.lock, writer.lock or its service's
        self.born_s = world.clock.now_s
        self.frozen_until_s = 0.0
        self.is_orphan = False  # the lifeline is cut: the watchdog is dead
        self.kill_in: int | None = None  # killed before its n-th disk operation from now
        self.was_stopped_for_ever = False
        self._timer: Timer | None = None
        self._timer_s = 0.0
        world.born(self)

    # -- turns -----------------------------------------------------------------------------------------------
    def wake(self, delay_s: float = 0.0) -> None:
        """Give it a turn that long from now, unless it gets one earlier."""
        if self.is_dead:
            return
        clock = self.world.clock
        due_s = max(clock.now_s + delay_s, self.frozen_until_s)
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        self._timer, self._timer_s = clock.at(due_s, self._begin_turn), due_s

    def _begin_turn(self) -> None:
        self._timer = None
        if self.is_dead:
            return
        if self.frozen_until_s > 0.0 and self.world.clock.now_s < self.frozen_until_s:
            self.wake()
            return
        self.on_disk(self.turn)

    def on_disk(self, work: Callable[[], object]) -> None:
        """Call `work`, and die in the middle if a kill is due at one of its disk operations."""
        disk = self.world.disk
        disk.kill_in = self.kill_in
        try:
            work()
            self.kill_in = disk.kill_in
        except Killed:
            self.die(KILLED, "outside")
        finally:
            disk.kill_in = None

    def turn(self) -> None:
        raise NotImplementedError

    # -- ends ------------------------------------------------------------------------------------------------
    def freeze(self, seconds: float) -> None:
        """Send SIGSTOP, and SIGCONT after that long. One frozen for longer already, perhaps with
        its machine, stays so.
        """
        self.frozen_until_s = max(self.frozen_until_s, self.world.clock.now_s + seconds)
        self.was_stopped_for_ever = self.was_stopped_for_ever or seconds >= FOR_EVER_S
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.wake()

    def thaw(self) -> None:
        """Send SIGCONT."""
        self.frozen_until_s = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.wake()

    @property
    def is_frozen(self) -> bool:
        return self.frozen_until_s > 0.0 and self.world.clock.now_s < self.frozen_until_s

    @property
    def is_stuck(self) -> bool:
        """Return whether it would never end."""
        return self.was_stopped_for_ever

    def orphan(self) -> None:
        """Close the other end of the lifeline."""
        self.is_orphan = True
        self.wake()

    def die(self, exit: Exit, by: str) -> None:
        if self.is_dead:
            return
        self.is_dead = True
        if self._timer is not None:
            self._timer.cancel()
        self.let_go()
        self.world.memory.release(self.pid)
        self.world.process_died(self, exit, by)

    def let_go(self) -> None:
        """Close its sockets. Called once, at its death."""


class SimStranger(ExternalProcess):
    """A process that is known by its pid only."""

    def __init__(self, world: World, pid: int) -> None:
        self.pid, self._world = pid, world

    def has_ended(self) -> bool:
        return self.pid not in self._world.processes

    def signal_tree(self, number: int, sparing: frozenset[int] = frozenset()) -> None:
        process = self._world.processes.get(self.pid)
        if process is not None and number == signal.SIGKILL:
            process.die(KILLED, "service")

    def close(self) -> None:
        """Do nothing: there is no descriptor."""
