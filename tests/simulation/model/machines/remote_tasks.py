"""The real RemoteTasks over simulated links instead of sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from procsv.base.identity import CHECKPOINT, TaskId
from procsv.ipc.messaging.checkpoint_messages import Restore
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.member_messages import MemberBeat
from procsv.ipc.messaging.start import Start
from procsv.watchdog.core import events
from procsv.watchdog.core.settings import AdoptedTask
from procsv.watchdog.machines.core.membership import Member, Membership
from procsv.watchdog.machines.core.orders import Order
from procsv.watchdog.machines.questions import Questions
from procsv.watchdog.machines.remote_tasks import RemoteTasks
from tests.simulation.model.machines import facts
from tests.simulation.model.machines.links import LinkServer
from tests.simulation.model.machines.memory_copies import NO_CONTEXT, SimMemoryCopyRelay
from tests.simulation.model.network import SimClient

if TYPE_CHECKING:
    from tests.simulation.model.machines.machine_world import MachineWorld


class SimQuestions(Questions):
    def __init__(self, world: MachineWorld, start: Start, wake: Callable[[], None]) -> None:
        super().__init__(NO_CONTEXT, start, world.clock)
        self._world, self._wake = world, wake

    def ask(self, task: TaskId, incarnation: int, durable_only: bool) -> None:
        """Ask for a checkpoint in any case: transfers on their own sockets are not modelled."""
        self.withdraw_question(task)
        world, me = self._world, Address(self._start.run, task, incarnation)
        client: Any = SimClient(world.network, world.socket(CHECKPOINT), me, world.clock, self._wake)
        client.send_reliable(Restore(durable_only=True))
        self._open[task] = client


class SimRemoteTasks(RemoteTasks):
    def __init__(
        self,
        world: MachineWorld,
        server: LinkServer,
        membership: Membership,
        start: Start,
        wake: Callable[[], None],
        adopted: Mapping[TaskId, AdoptedTask],
    ) -> None:
        any_server: Any = server
        copy_relay = SimMemoryCopyRelay(world, server, membership, start, wake)
        super().__init__(NO_CONTEXT, any_server, membership, start, world.clock, world.name, adopted, copy_relay)
        self._questions = SimQuestions(world, start, wake)
        self._world, self.server, self.members, self._run = world, server, membership, start.run
        self.told: list[TaskId] | None = None  # members that have not acknowledged the end

    def _order(self, task: TaskId, order: Order) -> bool:
        given = facts.Given(self._run, self.members.by_task[task].host, order)
        self._world.fleet.note(given, self._world)
        return super()._order(task, order)

    def _heard_from(self, member: Member, received: Received) -> list[events.Event]:
        heard = super()._heard_from(member, received)
        if isinstance(received.body, MemberBeat) and member.clock.ahead_s is not None:
            self._note_clock(member, received.body)
        return heard

    def _note_clock(self, member: Member, beat: MemberBeat) -> None:
        world, theirs = self._world, self._world.fleet.find_world(member.host)
        true_s = world.clock.now_s - theirs.clock.now_s  # our clock's lead over theirs
        assert member.clock.ahead_s is not None
        error_s, delay_s = member.clock.ahead_s - true_s, theirs.clock.now_s - beat.sent_s
        world.fleet.note(facts.ClockSeen(member.host, error_s, delay_s), world)

    def _end(self, there: list[TaskId]) -> None:
        self.told = there  # the launch's turns wait for them

    def have_heard(self) -> bool:
        """Do wait_until_heard, in turns."""
        while (received := self.server.receive()) is not None:
            self.server.acknowledge(received)
        self.server.resend_due()
        return not any(map(self.server.unacknowledged, self.told or ()))

    def let_go(self) -> None:
        self._questions.close()
        if self._copy_relay is not None:
            self._copy_relay.close()
        self.server.close()
