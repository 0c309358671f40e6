"""What servers capture while there is no chief: whose turn it is, and the server that does it; as
runtime/capture_turn.py and graph/deputy.py have it.

The kernel's locks are pids here, and a death lets go of them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from procsv.base.cluster import PS
from procsv.base.identity import TaskId
from procsv.ipc.messaging.endpoint import Address
from tests.simulation.model import history
from tests.simulation.model.memory import Plan, SimArena
from tests.simulation.model.program_process import Doing, ProgramProcess, Wait

if TYPE_CHECKING:
    from tests.simulation.model.memory import SimMemory

DEPUTY = TaskId(PS, 0)
LOOK_S = 0.1
TAKE_S_MAX = 10.0  # for the servers' answers
POLL_S, LONG_S = 0.2, 1e6


class CaptureTurn:
    """Of one machine.  The plan is in its memory."""

    def __init__(self) -> None:
        self.chief = 0  # pid that has the chief's lock: who has it waits for its turn, or has it
        self._holder = 0
        self._waiting: list[ProgramProcess] = []  # for a lock to be let go

    @property
    def is_wanted(self) -> bool:
        return self.chief != 0

    def take(self, chief: ProgramProcess) -> bool:
        """The chief's; to be tried again until it is True."""
        self.chief = chief.pid
        if self._holder in (0, chief.pid):
            self._holder = chief.pid
            return True
        self._waiting.append(chief)
        return False

    def try_take(self, deputy: ProgramProcess) -> bool:
        if self._holder or self.is_wanted:
            self._waiting.append(deputy)
            return False
        self._holder = deputy.pid
        return True

    def let_go(self, pid: int) -> None:
        """Of the turn, and of the chief's lock if it is that one's."""
        self.chief = 0 if self.chief == pid else self.chief
        self._holder = 0 if self._holder == pid else self._holder
        waiting, self._waiting = self._waiting, []
        for process in waiting:
            process.wake()

    def note_snapshot(self, memory: SimMemory, now_s: float, interval_s: float) -> None:
        """The chief has filled a slot: the deputy goes on from here."""
        memory.plan = Plan(now_s, interval_s)


def stand_in(server: ProgramProcess, turn: CaptureTurn) -> Doing:
    """Captures for the chief whenever there is none, as long as the process lives."""
    world, failed, last_s = server.world, None, 0.0
    while True:
        if not turn.try_take(server):
            yield (lambda: not turn.is_wanted), LONG_S
            continue
        now_s, plan = world.clock.now_s, world.memory.plan
        try:
            if plan is None or plan is failed:
                due_s = now_s + 1.0  # another is laid by a chief, which takes the turn for it
            elif now_s < (due_s := max(plan.last_s, last_s) + plan.interval_s):
                pass
            else:
                last_s, due_s = now_s, now_s
                if not (yield from _capture(server, turn)):
                    failed = plan
        finally:
            turn.let_go(server.pid)
        yield max(LOOK_S, due_s - now_s)


def _capture(server: ProgramProcess, turn: CaptureTurn) -> Generator[Wait, bool, bool]:
    """False if the plan is of no use any more."""
    world, memory = server.world, server.world.memory
    servers, known, until_s = world.servers, world.servers.pids, world.clock.now_s + TAKE_S_MAX
    newest = memory.newest_ready(world.chief)
    if newest is None or newest.info.run != server.run_id:
        return True
    while servers.are_frozen:
        if servers.pids != known or world.clock.now_s >= until_s:
            return False
        yield POLL_S
    if (taken := servers.take()) is None:
        return False
    step, value = taken
    pool = SimArena(
        memory, Address(server.run_id, world.chief, newest.info.incarnation), server.pid, world.program.plan
    )
    pool.reserve(1, None)
    slot = pool.begin_snapshot()
    if slot is None:
        return True
    sequence, is_wanted = newest.info.sequence + 1, False
    if step > newest.info.step:
        is_wanted = yield (lambda: turn.is_wanted), world.program.copy_s
    if step <= newest.info.step or is_wanted or servers.pids != known:
        pool.abandon(slot)
        return servers.pids == known
    pool.publish(slot, sequence, step, value)
    world.note(history.Wrote(server.pid, server.incarnation))
    world.note(history.Captured(newest.info.incarnation, step, value))
    return True
