"""The coordinator's launch: the core, event loop and table of remote tasks are real.

How it takes the logdir and gathers the others is modelled, step by step after open_run.py,
opening/run_lock.py and machines/forming.py. The rules are real: what a lease means, who may
join, and what each launch learns.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from procsv.base import exit_codes
from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.outcome import NO_STEP
from procsv.base.run.lease import Lease, LeaseStanding, judge_lease, lost_to, other_holder
from procsv.base.run.terms import Term
from procsv.base.system.processes import ProcessIdentity
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.member_messages import Refused
from procsv.ipc.messaging.start import Start
from procsv.watchdog.core.actions import Quit
from procsv.watchdog.core.settings import AdoptedTask, Settings
from procsv.watchdog.edge.event_loop import Reactor
from procsv.watchdog.edge.opening.run_lock import LEASE_S, LEASE_S_LOOKS_OLD, SETTLE_S
from procsv.watchdog.edge.status import Facts
from procsv.watchdog.machines.core.adoption import NothingToAdopt
from procsv.watchdog.machines.remote_tasks import END_S_MAX
from procsv.watchdog.machines.remote_tasks import HEARD_LOOK_S as END_LOOK_S
from tests.simulation.model import history
from tests.simulation.model.machine import Machine
from tests.simulation.model.machines import facts
from tests.simulation.model.machines.forming import SimForming, SimPorts
from tests.simulation.model.machines.launch import EXIT_LOCKED, Launch, Move, Opening, Refusal
from tests.simulation.model.machines.links import LinkServer
from tests.simulation.model.machines.memory_copies import SimMemoryCopyRestore
from tests.simulation.model.machines.remote_tasks import SimRemoteTasks
from tests.simulation.model.machines.shared import SimLeaseFile, SimLeaseKeeper, place_of
from tests.simulation.model.network import SimSockets
from tests.simulation.model.watchdog import LOOP_S_MIN, NotedCore, Preemptions

if TYPE_CHECKING:
    from tests.simulation.model.machines.machine_world import MachineWorld
    from tests.simulation.model.machines.scheduler import Slot

GATHER_LOOK_S, WATCH_LOOK_S, FETCH_LOOK_S = 1.0, 0.5, 0.1


class LeasedMachine(Machine):
    """A machine whose logdir port keeps the lease."""

    def __init__(self, launch: CoordinatorLaunch, start: Start) -> None:
        super().__init__(launch.here, start, launch.wake)
        self._launch, self._has_stopped = launch, False

    def keep(self, now_s: float) -> str:
        keeper = self._launch.keeper
        if not keeper.is_due(now_s):
            return ""
        taken = keeper.renew(now_s, self._launch.here.clock.wall())
        return taken.place.host if taken is not None else ""

    def stop_writing(self, *_: object, **__: object) -> None:
        self._has_stopped = True

    def write_run(self, run: object, durable: bool) -> None:
        if not self._has_stopped and lost_to(SimLeaseFile(self._launch.fleet.logdir), self._launch.run) is None:
            self._launch.fleet.logdir.last_writer = self._launch.run


class CoordinatorLaunch(Launch):
    def __init__(self, world: MachineWorld, slot: Slot) -> None:
        fleet = world.fleet
        self.run = fleet.new_run_id()
        self.term: Term | None = None
        self.core: NotedCore | None = None
        self.server: LinkServer | None = None
        self.sockets: SimSockets | None = None
        self.remote: SimRemoteTasks | None = None
        self._quit: Quit | None = None
        self._end_s = 0.0
        self.forming: Any = None
        self._restore: SimMemoryCopyRestore | None = None  # for a lost chief's memory
        super().__init__(world, slot)

    # -- taking the logdir -----------------------------------------------------------------------------------
    def _open(self) -> Opening:
        yield from self.take_directories()
        yield from self._take_lease()
        yield from self._form()

    def _take_lease(self) -> Opening:
        world, file = self.here, SimLeaseFile(self.fleet.logdir)
        wall_s, place = world.clock.wall(), place_of(world.name)
        ours = Lease(run=self.run, place=place, pid=self.pid, started=0.0, what="launch", since=wall_s, renewed=wall_s)
        found = file.holder()
        if found is not None:
            is_alive = found.pid in world.processes
            standing = judge_lease(found, place, has_lock=True, is_alive=is_alive)
            if standing is LeaseStanding.WATCHED:
                yield from self._watch(file, found)
            file.take_lease(ours)
            if standing is LeaseStanding.WATCHED:
                yield SETTLE_S
            if other_holder(file, self.run) is not None:
                raise Refusal("the logdir is in use", EXIT_LOCKED)
        else:
            file.take_lease(ours, is_new=True)
        self.fleet.note(facts.LeaseTaken(self.run), world)
        self.keeper = SimLeaseKeeper(self.fleet.logdir, ours, world.clock.now_s, has_run_json=False)

    def _watch(self, file: SimLeaseFile, found: Lease) -> Opening:
        clock = self.here.clock
        until_s = clock.now_s + (LEASE_S_LOOKS_OLD if file.age_s() > LEASE_S else LEASE_S)
        while clock.now_s < until_s:
            yield WATCH_LOOK_S
            if file.holder() not in (found, None):
                raise Refusal("the logdir is in use: another machine writes there", EXIT_LOCKED)

    # -- forming ---------------------------------------------------------------------------------------------
    def _form(self) -> Opening:
        world, fleet, slot = self.here, self.fleet, self.slot
        port = fleet.new_port()
        self.server = LinkServer(fleet.links, world.name, port, Address(self.run, WATCHDOG, 1), world.clock, self.wake)
        start = msgspec.structs.replace(self.make_start(self.run), is_spread=True)
        self.forming, survivors = SimForming(start, world, slot, self.server), None
        ports: Any = SimPorts(fleet)
        self._publish(port)
        yield from self._gather(port)
        while self.forming.has_run_before and survivors is None:
            try:
                survivors = self.forming.adopt(ports)
            except NothingToAdopt as why:
                self.forming.begin_anew(str(why), fleet.say)
                yield from self._gather(port)
        if self.forming.wants_copy(survivors):
            yield from self._take_copy(start)
        if survivors is not None:
            fleet.go_on(self.run, min(self.forming.runs_before))
        self._begin(*self.forming.welcome(ports, survivors))

    def _publish(self, port: int) -> None:
        world, logdir = self.here, self.fleet.logdir
        draft = Term(scheduler=self.slot.attempt.scheduler, run=self.run, hosts=(world.name,), port=port)
        there = dict(logdir.terms)
        self.term = logdir.write_term(draft)
        replaced = there.get(self.term.number)
        self.fleet.note(facts.TermWritten(self.run, self.term.number, replaced.run if replaced else ""), world)
        logdir.forget_terms(self.term.number)

    def _gather(self, port: int) -> Opening:
        clock, scheduler = self.here.clock, self.slot.attempt.scheduler
        until_s = clock.now_s + self.fleet.settings.coordinator_timeout_s
        while missing := self.forming.membership.missing:
            self._keep_lease()  # first: a coordinator that was frozen must not find that everyone has joined meanwhile
            self.forming.hear()
            newest = self.fleet.logdir.newest_term(scheduler)
            if newest is not None and newest.refused:
                self._publish(port)
            if clock.now_s > until_s:
                raise Refusal(f"no launch has joined for {missing}", exit_codes.RESUMABLE)
            if self.forming.membership.missing:
                yield GATHER_LOOK_S

    def _take_copy(self, start: Start) -> Opening:
        """Do as coordinator.py. The newest checkpoint is what the logdir lists."""
        latest = self.fleet.logdir.latest[-1:]
        saved_step = int(latest[0].rpartition("-")[2]) if latest and latest[0] != "spoilt" else NO_STEP
        self._restore = SimMemoryCopyRestore(self, start, saved_step)
        for _ in self._restore.take_in_turns(self.forming.copy_offers):
            self._keep_lease()
            yield FETCH_LOOK_S

    def _keep_lease(self) -> None:
        """Keep the lease as coordinator.py does while it waits for the others."""
        clock = self.here.clock
        if self.keeper.is_due(clock.now_s) and self.keeper.renew(clock.now_s, clock.wall()) is not None:
            raise Refusal("the logdir is in use", EXIT_LOCKED)

    def _refused(self, refusal: Refusal) -> None:
        """Refuse as Forming.refuse and refuse_members do: those that have joined and those that
        look for a term learn it.
        """
        for received in self.forming.asked.values() if self.forming is not None else ():
            assert self.server is not None
            self.server.send_reliable(received.who, Refused(str(refusal), refusal.exit_code), re=received.seq)
        term = Term(
            scheduler=self.slot.attempt.scheduler, run=self.run, refused=str(refusal), exit_code=refusal.exit_code
        )
        self.fleet.logdir.write_term(term)
        SimLeaseFile(self.fleet.logdir).remove(self.run)
        self.fleet.note(facts.LeaseLeft(self.run), self.here)
        super()._refused(refusal)

    # -- the run ---------------------------------------------------------------------------------------------
    def _begin(self, start: Start, adopted: Mapping[TaskId, AdoptedTask]) -> None:
        world, fleet, slot = self.here, self.fleet, self.slot
        assert self.server is not None
        assert self.term is not None
        self.membership = self.forming.membership
        self.remote = SimRemoteTasks(world, self.server, self.membership, start, self.wake, adopted)
        here = ((fleet.tasks[0], 0, world.name),)
        there = tuple((m.task, m.number, m.host) for m in self.membership.by_task.values())
        fleet.note(facts.Formed(slot.attempt.scheduler, self.run, self.term.number, here + there), world)
        world.join_run(self.run)
        self.keeper = SimLeaseKeeper(fleet.logdir, self.keeper.lease, world.clock.now_s)
        world.last_run, fleet.logdir.last_writer = fleet.logdir.last_writer, self.run
        settings = Settings(
            fleet.settings, tasks=fleet.tasks, hosts=self.remote.host_of, host=world.name, adopted=self.remote.adopted
        )
        first = fleet.logdir.last_incarnation + 1
        rng = Random(self.run)
        self.core = NotedCore(world, settings, first, rng, world.clock.now_s, lambda task: None)
        self.sockets = SimSockets(world, self.run, self.wake, self._note)
        self.machine = LeasedMachine(self, start)
        self.machine.asked += self.asked
        preemptions = Preemptions(fleet.tasks[0])
        environment = self.machine.environment(world.clock, self.sockets, preemptions.reach_by)
        environment = msgspec.structs.replace(environment, remote=self.remote)
        self.reactor = Reactor(
            self.core, Facts(start, ProcessIdentity(self.pid, 0.0, "boot"), world.clock.wall()), environment
        )
        self.reactor.start()
        if self._restore is not None:
            self._restore.tell()

    @property
    def is_serving(self) -> bool:
        """Return whether its run has started and nobody has asked it to end."""
        return self.core is not None and self._quit is None and not self.core.is_ending

    def _note(self, received: Received) -> None:
        if isinstance(received.body, Durable):
            self.here.note(history.Acknowledged(received.body, WATCHDOG))

    def _serve(self) -> None:
        if self._quit is not None:
            self._say_goodbye()
            return
        assert self.sockets is not None
        self.reactor.run_once()
        if (quit := self.reactor.result) is not None:
            self._leave(quit)
        else:
            self.wake(LOOP_S_MIN if self.sockets.wants_tick else self.reactor.pause_s())

    # -- the end ---------------------------------------------------------------------------------------------
    def _leave(self, quit: Quit) -> None:
        """Do main._leave."""
        assert self.remote is not None
        self.reactor.close()
        self._quit, self._end_s = quit, self.here.clock.now_s + END_S_MAX
        there = tuple(m.number for m in self.membership.by_task.values() if not m.is_lost)
        places = self.membership.next_hosts() if quit.restarts_elsewhere else None
        lost = tuple(m.number for m in self.membership.by_task.values() if not m.stays)
        scheduler = self.slot.attempt.scheduler
        if places is not None:
            ranks = tuple((task, member.number) for task, member in places.items())
            self.fleet.note(facts.Moving(scheduler, self.run, ranks, lost), self.here)
        spares = self.remote.close(quit.exit_code, quit.restarts_elsewhere)
        if spares is not None:
            self.moves_to = Move(self.fleet.tasks[0], spares)
        is_stopped = self.core is not None and self.core.state_label == "stopped"
        ends = facts.CoordinatorEnds(scheduler, self.run, quit.exit_code, spares is not None, there, is_stopped)
        self.fleet.note(ends, self.here)
        self.here.clear_tree()
        self.wake()

    def _say_goodbye(self) -> None:
        assert self.remote is not None
        assert self._quit is not None
        if not self.remote.have_heard() and self.here.clock.now_s < self._end_s:
            self.wake(END_LOOK_S)
            return
        logdir = self.fleet.logdir
        logdir.ended = self.run, self._quit.exit_code
        logdir.withdraw_terms(self.run)
        SimLeaseFile(logdir).remove(self.run)
        self.here.clear_run(self._quit.keep_memory)
        self.leave(self._quit.exit_code, "the run is over")

    def let_go(self) -> None:
        if self.sockets is not None:
            self.sockets.close()
        if self.remote is not None:
            self.remote.let_go()
        elif self.server is not None:
            self.server.close()
