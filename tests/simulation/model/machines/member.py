"""A member's launch: MemberCore and MemberLoop are real; finding the coordinator and joining are
modelled on machines/joining.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from procsv import __version__
from procsv.base import exit_codes
from procsv.base.cluster import SPARE
from procsv.base.identity import CHECKPOINT, WATCHDOG, TaskId
from procsv.base.run.terms import Term
from procsv.ipc.messaging import member_messages as told
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.member_messages import LaunchLock
from procsv.ipc.messaging.start import Start
from procsv.watchdog.machines.checkpoint_proxy import CheckpointProxy
from procsv.watchdog.machines.core.member import MemberCore, MemberState
from procsv.watchdog.machines.joining import LOOK_AGAIN_S, REFUSAL_S, Asked, Joined, Rejoining
from procsv.watchdog.machines.member_loop import MemberLoop
from procsv.watchdog.machines.own_summary import OwnSummary
from procsv.watchdog.machines.remote_tasks import member_id
from tests.simulation.model.machine import Machine
from tests.simulation.model.machines import facts
from tests.simulation.model.machines.forming import SimPorts, told_addresses
from tests.simulation.model.machines.launch import LINE, Launch, Move, Opening, Refusal
from tests.simulation.model.machines.links import LinkClient
from tests.simulation.model.machines.memory_copies import SimMemoryCopyFiles, SimMemoryCopyKeeper, SimOfferedMemoryCopy
from tests.simulation.model.network import SimServer
from tests.simulation.model.processes import Process

if TYPE_CHECKING:
    from tests.simulation.model.machines.machine_world import MachineWorld
    from tests.simulation.model.machines.scheduler import Slot

TERM_LOOK_S = 0.5
ORDERS = (told.StartTask, told.SignalTask, told.KillTask, told.ClearTask, told.TellTask, told.TellState)
ENDS = (told.EndMember, told.MoveMember)


class _Running:
    """A child as its table lists it."""

    line = None  # no standby speaks

    def __init__(self, child: Process) -> None:
        self.child, self.incarnation = child, child.incarnation


class OwnLock:
    """The lock on the member's own directory, which never moves."""

    def relock(self) -> None: ...


class MemberMachine(Machine):
    """The member's table of processes and everything else that its loop touches."""

    heirs = OwnLock()

    @property
    def start(self) -> Start:
        return self._start

    @property
    def running(self) -> dict[TaskId, _Running]:
        return {task: _Running(child) for task, child in self.children.items()}


class NoWaiter:
    """Waits for nothing: the simulation wakes its processes."""

    def register(self, thing: object) -> None: ...
    def remove(self, thing: object) -> None: ...


class SimJoining:
    """A member without its coordinator asks the next one. Question and use of the answer are real code."""

    def __init__(self, launch: MemberLaunch) -> None:
        self._launch = launch

    def newest_term(self) -> Term | None:
        return self._launch.fleet.logdir.newest_term(self._launch.slot.attempt.scheduler)

    def read_end(self, run: str) -> int | None:
        logdir = self._launch.fleet.logdir
        return logdir.ended[1] if logdir.ended[0] == logdir.last_writer == run else None

    def ask(self, term: Term, served: told.Served | None = None) -> Asked:
        launch = self._launch
        me = Address(term.run, member_id(launch.slot.rank), 1)
        client: Any = LinkClient(launch.fleet.links, launch.here.name, term.port, me, launch.here.clock, launch.wake)
        launch.clients.append((term, client))
        return Asked(client, term, term.hosts[0], launch.question(served))


class NotedLoop(MemberLoop):
    """A MemberLoop that notes its orders for the invariants."""

    launch: MemberLaunch

    def _heard(self, received: Received) -> None:
        body, launch = received.body, self.launch
        mine: Any = self._client
        launch.term = next((term for term, client in launch.clients if client is mine), launch.term)
        assert launch.term is not None
        if isinstance(body, ORDERS + ENDS):
            attempt = launch.slot.attempt
            order = facts.Ordered(launch.here.name, attempt.scheduler, launch.term.number, launch.term.run, body)
            launch.fleet.note(order, launch.here)
        if isinstance(body, told.EndMember):
            slot = launch.slot
            launch.fleet.note(facts.ToldEnd(slot.attempt.scheduler, slot.rank, body.exit_code), launch.here)
        super()._heard(received)


class MemberLaunch(Launch):
    def __init__(self, world: MachineWorld, slot: Slot) -> None:
        self.term: Term | None = None  # the term of our coordinator
        self.client: LinkClient | None = None
        self.clients: list[tuple[Term, LinkClient]] = []  # coordinators it has asked since it lost one
        self.core: MemberCore | None = None
        names = told_addresses(world.fleet) if not slot.has_moved else None
        held = SimPorts(world.fleet, taken_chance=0.0).hold_own(slot.task, world.name, names)
        self._address = held.get(slot.task, "")
        self._lock: LaunchLock | None = None
        self._server: SimServer | None = None
        self._checkpoint_proxy: CheckpointProxy | None = None
        self._files = SimMemoryCopyFiles(world)
        self._copy_keeper: SimMemoryCopyKeeper | None = None
        self._offer: Callable[[], told.MirrorOffer | None] = lambda: None
        self._offered: SimOfferedMemoryCopy | None = None  # until a coordinator accepts us
        super().__init__(world, slot)

    # -- joining ---------------------------------------------------------------------------------------------
    def _open(self) -> Opening:
        yield from self.take_directories()
        self._lock = LaunchLock(self.here.name, self.here.clock.now_s)
        self._files.remove_drafts()
        self._offered = offered = SimOfferedMemoryCopy(self._files, self)
        self._offer = lambda: offered.offer
        clock, limit_s = self.here.clock, self.fleet.settings.coordinator_timeout_s
        began_s = clock.now_s
        while (waited_s := clock.now_s - began_s) < limit_s:
            term = self.fleet.logdir.newest_term(self.slot.attempt.scheduler)
            if term is not None and term.refused:
                if waited_s > REFUSAL_S:
                    raise Refusal(f"the coordinator could not start: {term.refused}", term.exit_code)
            elif term is not None:
                yield from self._ask(term)
                if self.core is not None:
                    return
            yield TERM_LOOK_S
        raise Refusal("no coordinator was found", exit_codes.RESUMABLE)

    def _ask(self, term: Term) -> Opening:
        """Wait for the coordinator's answer. No core means there was none, or a later term has come."""
        world, settings, slot = self.here, self.fleet.settings, self.slot
        me = Address(term.run, member_id(slot.rank), 1)
        client = self.client = LinkClient(self.fleet.links, world.name, term.port, me, world.clock, self.wake)
        client.send_reliable(self.question(None))
        now_s = world.clock.now_s
        until_s, look_s = now_s + settings.coordinator_timeout_s + settings.peer_timeout_s, now_s + LOOK_AGAIN_S
        while world.clock.now_s < until_s:
            client.resend_due()
            while (received := client.receive()) is not None:
                if isinstance(received.body, told.Refused):
                    client.acknowledge(received)
                    if received.body.exit_code != exit_codes.USAGE:
                        end = facts.ToldEnd(self.slot.attempt.scheduler, self.slot.rank, received.body.exit_code)
                        self.fleet.note(end, self.here)
                    raise Refusal(received.body.why, received.body.exit_code)
                if isinstance(received.body, told.Welcome):
                    client.acknowledge(received)
                    self._begin(term, client, received.body)
                    return
            if world.clock.now_s >= look_s:
                look_s = world.clock.now_s + LOOK_AGAIN_S
                newest = self.fleet.logdir.newest_term(slot.attempt.scheduler)
                if newest is None or newest.run != term.run:
                    break
            yield LOOK_AGAIN_S
        client.close()
        self.client = None

    def question(self, served: told.Served | None) -> told.Join:
        who = (self.slot.task, self.here.name, self._address, __version__, LINE, self.pid)
        return told.Join(*who, served, mirror=self._offer(), launch=f"{self.here.name}.{self.pid}", lock=self._lock)

    # -- serving ---------------------------------------------------------------------------------------------
    def _begin(self, term: Term, client: LinkClient, welcome: told.Welcome) -> None:
        world, settings, self.term = self.here, self.fleet.settings, term
        world.join_run(term.run)
        self.machine = self._table = MemberMachine(world, self.make_start(term.run), self.wake)
        self.machine.asked += self.asked
        table: Any = self._table
        link: Any = client
        self._server = SimServer(
            world.network, world.socket(WATCHDOG), Address(term.run, WATCHDOG, 1), world.clock, self.wake
        )
        service: Any = SimServer(
            world.network, world.socket(CHECKPOINT), Address(term.run, CHECKPOINT, 1), world.clock, self.wake
        )
        self._checkpoint_proxy = CheckpointProxy(
            service, self.make_start(term.run), term.hosts[0], world.clock, lambda _: None
        )
        summary = OwnSummary(table, table, table, world.clock)
        server: Any = self._server
        if self._offered is not None:
            self._offered.close()
        keeper = self._copy_keeper = SimMemoryCopyKeeper(self, self._files, term.run, term.hosts[0])
        self._offer = keeper.offer
        self.core = MemberCore(
            settings.grace_s,
            settings.peer_timeout_s,
            settings.coordinator_timeout_s,
            term.hosts[0],
            world.clock.monotonic(),
        )
        waiter: Any = NoWaiter()
        joining: Any = SimJoining(self)
        self._loop = NotedLoop(
            self.core,
            self.slot.task,
            server,
            self._checkpoint_proxy,
            summary,
            table,
            table,
            table,
            table,
            table,
            world.clock,
            waiter,
            Rejoining(joining, term.run, waiter, world.clock),
            Joined(link, term, term.hosts[0], welcome),
            keeper,
        )
        self._loop.launch = self
        if self.slot.task.role != SPARE:
            summary.start()

    @property
    def begins_anew(self) -> bool:
        """Return whether the next coordinator said that the previous run does not continue."""
        loop: NotedLoop | None = getattr(self, "_loop", None)
        return loop is not None and loop.begins_anew

    def _serve(self) -> None:
        assert self.core is not None
        self._loop.run_once()
        if self.core.state is not MemberState.GONE:
            self.wake(self._loop._pause_s())
            return
        if self._loop.moves_to is not None:
            self.moves_to = Move(*self._loop.moves_to)
        elif self._loop.begins_anew:
            self.moves_to = Move(self.slot.task, self.slot.spares)
        self.machine.kill_tree(self.slot.task, self._loop.incarnation)
        if self._copy_keeper is not None:
            self._copy_keeper.close(keeps=not self._loop.needs_no_copy)
            self._copy_keeper = None
        self.here.clear_run(keep_memory=False)
        self.leave(self.core.exit_code, self.core.why)

    def let_go(self) -> None:
        if self._copy_keeper is not None:
            self._copy_keeper.die()
        if self._offered is not None:
            self._offered.close()
        for client in (self.client, *(client for _, client in self.clients)):
            if client is not None:
                client.close()
        for server in (self._server, self._checkpoint_proxy):
            if server is not None:
                server.close()
