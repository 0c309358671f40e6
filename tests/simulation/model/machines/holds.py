"""Holds of the tasks on other machines under `--consistent-snapshots`: what the chief says when, and whether a step may begin, is the real code.

Follows training/holds/far_holder.py and held_task.py; their sockets are ends in this network, which is cut, slow and breaks as the link
between the watchdogs does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from procsv.base.cluster import STEPLESS
from procsv.base.identity import WATCHDOG, TaskId
from procsv.ipc.messaging.messages import AskHold, AskHolds, Body, HoldOffer, HoldOffered, HoldTold, StepsEnded
from procsv.training.holds import frames
from procsv.training.holds.held_steps import HeldSteps
from procsv.training.holds.holding import Holding, Orders
from procsv.training.holds.limits import SILENT_ORDERS_MAX
from procsv.training.runtime.step_hold import SETTLE_S, gather_s_of
from tests.simulation.model.clock import SimClock
from tests.simulation.model.group.passage import NoHolder, OpenPassage
from tests.simulation.model.machines import facts
from tests.simulation.model.machines.links import Links, Listening, Reaching
from tests.simulation.model.program_process import Doing, ProgramProcess, Wait

if TYPE_CHECKING:
    from tests.simulation.model.machines.machine_world import MachineWorld

REMEMBERED_S = 300.0
CAPTURE_S, LONG_CAPTURE_S, LONG_CHANCE = (0.001, 0.045), (0.04, 0.3), 0.1
LONG_STEP, LONG_STEP_CHANCE = 4.0, 0.05  # so many times as long as others
LOOK_S = 2.5  # whoever has waited for so long is looked at: no step waits longer for a hold


@dataclass(slots=True)
class _Span:
    task: str
    begun_s: float
    ended_s: float


class StepLog:
    """The steps that are made on the servers of a run, by the time that all machines share."""

    def __init__(self, clock: SimClock, rng: Random) -> None:
        self._clock, self._rng = clock, rng
        self._within: dict[int, _Span] = {}  # by pid
        self._over: deque[_Span] = deque()

    def begin(self, process: ProgramProcess) -> None:
        now_s = self._clock.now_s
        self._within[process.pid] = _Span(f"{process.task} {process.incarnation}", now_s, now_s)

    def end(self, process: ProgramProcess) -> None:
        self._end(process, self._clock.now_s)

    def died(self, process: ProgramProcess) -> None:
        """Perhaps in a step: the servers do the rest of it."""
        if process.pid in self._within:
            self._end(process, self._clock.now_s + 0.99 * SETTLE_S * self._rng.random())

    def _end(self, process: ProgramProcess, ended_s: float) -> None:
        span = self._within.pop(process.pid)
        span.ended_s = ended_s
        self._over.append(span)
        while self._over[0].ended_s < ended_s - REMEMBERED_S:
            self._over.popleft()

    def met(self, begun_s: float, ended_s: float) -> str:
        """Whose step was under way between the two; "" if none was."""
        for span in self._within.values():
            if span.begun_s < ended_s:
                return f"{span.task}, which is in a step since {span.begun_s:.3f} s"
        for span in reversed(self._over):
            if span.ended_s < begun_s - 2 * SETTLE_S:
                break  # in this order, but for those who died
            if span.begun_s < ended_s and span.ended_s > begun_s:
                return f"{span.task}, which was in a step from {span.begun_s:.3f} to {span.ended_s:.3f} s"
        return ""


class HoldServer(Listening):
    """BulkServer."""

    def __init__(self, links: Links, machine: str, port: int, hear: Callable[[bytes, bytes], None]) -> None:
        self._hear = hear
        self.listen(links, machine, port)

    def deliver(self, told: list[bytes]) -> None:
        if self.is_open:
            self._hear(*told)


class HoldClient(Reaching):
    """BulkClient.  `wake`: something has come."""

    def __init__(self, links: Links, machine: str, port: int, who: str, wake: Callable[[], None]) -> None:
        self._wake, self._waiting, self.heard = wake, deque[list[bytes]](), deque[list[bytes]]()
        self.reach(links, machine, port, links.new_name(who))

    def send(self, told: list[bytes]) -> None:
        if not self.send_on(told) and len(self._waiting) < SILENT_ORDERS_MAX:
            self._waiting.append(told)

    def has_connected(self) -> None:
        while self._waiting:
            self.send_on(self._waiting.popleft())

    def deliver(self, told: list[bytes]) -> None:
        if self.is_open:
            self.heard.append(told)
            self._wake()


class HeldPassage(OpenPassage):
    """HeldTask."""

    def __init__(self, task: ProgramProcess, world: MachineWorld) -> None:
        self._task, self._clock, self._log, self._note = task, world.clock, world.steps, world.fleet.note
        self._world = world
        self._steps = HeldSteps()
        self._holder = b""  # whose hold there is
        self._unheard: deque[tuple[bytes, bytes]] = deque()  # while it is frozen
        self._is_waiting = False
        port = world.fleet.new_port()
        self._server = HoldServer(world.fleet.links, world.name, port, self._has_come)
        self._offered = HoldOffered(HoldOffer(port, "", "", ""))
        self._task._tell(WATCHDOG, self._offered)

    # -- the training thread ---------------------------------------------------------------------------------
    def open_steps(self) -> None:
        self._steps.open_steps(self._clock.now_s)

    def enter(self) -> Doing:
        begun_s, freezes = self._clock.now_s, self._task.freezes
        self._is_waiting = True
        while wait_s := self._steps.wait_s(self._clock.now_s):
            yield (lambda: not self._steps.wait_s(self._clock.now_s)), min(wait_s, LOOK_S)
            if self._task.freezes == freezes:
                self._note(facts.Stood(self._task.task, self._clock.now_s - begun_s), self._world)
        self._is_waiting = False
        self._steps.begin_step()
        self._log.begin(self._task)

    def step_s(self, step_s: float) -> float:
        rng = self._world.rng
        return step_s * (rng.uniform(1.0, LONG_STEP) if rng.random() < LONG_STEP_CHANCE else 1.0)

    def leave(self) -> None:
        self._log.end(self._task)
        if (answer := self._steps.end_step(self._clock.now_s)) is not None:
            self._answer(self._holder, answer)

    def end(self) -> None:
        self._task._tell(WATCHDOG, StepsEnded())

    # -- the other one ---------------------------------------------------------------------------------------
    def hear(self, body: Body) -> None:
        if isinstance(body, AskHold):
            self._task._tell(WATCHDOG, self._offered)

    def _has_come(self, who: bytes, data: bytes) -> None:
        self._unheard.append((who, data))
        if self._task.is_frozen:
            self._clock.at(self._task.frozen_until_s, self._hear)
        else:
            self._hear()

    def _hear(self) -> None:
        while self._unheard and not self._task.is_dead and not self._task.is_frozen:
            self._holder, data = self._unheard.popleft()
            answer = self._steps.ordered(frames.read_order([data]), self._clock.now_s)
            if answer is not None:
                self._answer(self._holder, answer)
            if self._is_waiting:  # for less long than before, perhaps
                self._clock.after(self._steps.wait_s(self._clock.now_s), self._task.wake)

    def _answer(self, who: bytes, answer: frames.Answer) -> None:
        self._server.answer([who, *frames.pack(answer)])

    def close(self) -> None:
        self._server.hang_up()
        self._log.died(self._task)


class SimHolder(NoHolder):
    """FarHolder."""

    def __init__(self, chief: ProgramProcess, world: MachineWorld) -> None:
        self._chief, self._world, self._clock, self._log = chief, world, world.clock, world.steps
        others = [task for task in world.fleet.tasks if task.role not in STEPLESS and task != chief.task]
        owner = f"{chief.run_id} {chief.pid}"
        self._holding = Holding(others, owner, self._clock.now_s, is_first=chief.incarnation == 1)
        self._clients: dict[TaskId, HoldClient] = {}
        self._news: deque[HoldTold] = deque()
        self._is_waiting = False
        chief._tell(WATCHDOG, AskHolds())

    def stepped(self) -> None:
        self._log.begin(self._chief)
        self._log.end(self._chief)

    def hear(self, body: Body) -> None:
        if isinstance(body, HoldTold):
            self._news.append(body)

    def close(self) -> None:
        for client in self._clients.values():
            client.hang_up()

    def capture(self, take: Callable[[], int | None]) -> Generator[Wait, bool, int | None]:
        holding, clock, fleet = self._holding, self._clock, self._world.fleet
        self._take_news()
        self._hear_all()
        self._send(holding.begin(gather_s_of(self._world.program.step_s), clock.now_s))
        if holding.wants_news:
            self._chief._tell(WATCHDOG, AskHolds())
        yield from self._hear_while_worth_it()
        self._send(holding.gathered(clock.now_s))
        begun_s = fleet.clock.now_s
        if not holding.hold.why:
            fleet.clock.after(self._world.rng.uniform(0.0, CAPTURE_S[1]), self._world.strike_hold)
        sequence = take()
        yield self._world.rng.uniform(*(LONG_CAPTURE_S if self._world.rng.random() < LONG_CHANCE else CAPTURE_S))
        ended_s = fleet.clock.now_s
        self._send(holding.captured(clock.now_s))
        yield from self._hear_while_worth_it()
        holding.end()
        if sequence is not None:
            hold = holding.hold
            fleet.note(facts.CapturedHeld(self._chief.task, begun_s, ended_s, not hold.is_whole, hold.why), self._world)
        return sequence

    def _take_news(self) -> None:
        while self._news:
            news = self._news.popleft()
            if not self._holding.told(news, self._clock.now_s):
                continue
            if (client := self._clients.pop(news.task, None)) is not None:
                client.hang_up()
            if news.offer is not None:
                links, me = self._world.fleet.links, f"{self._chief.task}.{self._chief.incarnation}"
                self._clients[news.task] = HoldClient(links, self._world.name, news.offer.port, me, self._wake)

    def _wake(self) -> None:
        if self._is_waiting:
            self._chief.wake()

    def _send(self, orders: Orders) -> None:
        for task, order in orders:
            self._clients[task].send(frames.pack(order))

    def _hear_while_worth_it(self) -> Generator[Wait, bool, None]:
        def is_over() -> bool:
            self._hear_all()
            return not self._holding.wait_s(self._clock.now_s)

        self._is_waiting = True
        while wait_s := self._holding.wait_s(self._clock.now_s):
            yield is_over, wait_s
        self._is_waiting = False

    def _hear_all(self) -> None:
        for task, client in self._clients.items():
            while client.heard:
                self._holding.heard(task, frames.read_answer(client.heard.popleft()), self._clock.now_s)
