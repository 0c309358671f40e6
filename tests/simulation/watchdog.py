"""The watchdog's process: the real core, and in the place of its reactor a loop that carries out what the core says.

Follows procsv/watchdog/edge/event_loop.py, acquire_run.py and host.py: events are made of the dead, of what is heard, of signals and of
time; an action that is not known here raises.  Answers `procsv status` by the real run file and status object.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import msgspec

from procsv.base.outcome import Exit
from procsv.base.processes import Identity
from procsv.base.run.run_file import RunFile
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.messages import (
    Durable,
    Finish,
    FlushDone,
    Hello,
    Message,
    Status,
    StatusRequest,
    TrainerExited,
)
from procsv.ipc.messaging.standby_messages import Waiting
from procsv.ipc.messaging.start import Start
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.watchdog.core.events import (
    SERVICES,
    STANDBY,
    STOPPED,
    TRAINER,
    WATCHDOG,
    Action,
    ClearTree,
    Ended,
    Event,
    Journal,
    KillTree,
    NotPromoted,
    NotSpawned,
    PreemptAsked,
    Promote,
    Promoted,
    Quit,
    RecycleAsked,
    Report,
    Said,
    Say,
    ServiceReady,
    Signal,
    Spawn,
    Spawned,
    StandbySaid,
    StopAsked,
    Tell,
    Ticked,
    TreeGone,
    WriteRun,
)
from procsv.watchdog.core.run import Core
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.edge.acquire_run import LEFTOVER_MARGIN_S
from procsv.watchdog.edge.event_loop import REMAINS_S_MAX, TICK_S, WAIT_S_MIN
from procsv.watchdog.edge.status import Facts, run_file, status_object
from tests.simulation import history
from tests.simulation.network import SimClient, SimServer
from tests.simulation.processes import KILLED, Process
from tests.simulation.services import ServiceProcess
from tests.simulation.standby import StandbyProcess
from tests.simulation.trainer import Trainer

if TYPE_CHECKING:
    from tests.simulation.world import World

LOOK_S = 0.25  # at what an earlier run has left, and at a dead trainer's tree
EXIT_LOCKED = 73
PROMOTION_S = 0.002


class Watchdog(Process):
    """One `procsv launch`."""

    def __init__(self, world: World, run: str, settings: Settings) -> None:
        super().__init__(world, WATCHDOG, 1)
        self.run_id, self._settings = run, settings
        self.start = Start("watchdog", run, 1, "/logdir", "/run", str(world.memory.directory), settings=settings.launch)
        self.core: Core | None = None
        self.children: dict[str, Process] = {}
        self.is_stop_asked = False
        self.preempted: set[int] = set()  # pids of trainers
        self.quit: Quit | None = None
        self._later: deque[Event] = deque()  # what a standby has said
        self._dead: deque[tuple[Process, Exit]] = deque()
        self._orders: deque[StopAsked | PreemptAsked | RecycleAsked] = deque()
        self._asked: dict[str, dict[int, Message]] = {role: {} for role in SERVICES}
        self._clearing: int | None = None
        self._quit_s = self._tick_s = 0.0
        self._give_up_s = world.clock.now_s + settings.launch.grace_s + LEFTOVER_MARGIN_S
        self.wake()

    # -- opening ---------------------------------------------------------------------------------------------
    def _open(self) -> bool:
        """Takes the logdir, once nothing of an earlier run is alive."""
        world, now_s = self.world, self.world.clock.now_s
        if world.holder(WATCHDOG) is not None:
            self.die(Exit(EXIT_LOCKED, None), "itself")
        elif world.writer_lock_is_held() or any(world.holder(role) for role in SERVICES):
            for role in SERVICES:
                world.wake_holder(role)
            if now_s > self._give_up_s:
                self.die(Exit(EXIT_LOCKED, None), "itself")
            self.wake(LOOK_S)
        else:
            self._begin(now_s)
            return True
        return False

    def _begin(self, now_s: float) -> None:
        world = self.world
        self.holds_lock = True
        world.clear_run_dir()
        self.facts = Facts(self.start, Identity(self.pid, 0.0, "boot"), world.clock.wall())
        self.core = Core(self._settings, world.last_incarnation + 1, Random(self.run_id), now_s)
        me = Address(self.run_id, WATCHDOG, 1)
        self.server = SimServer(world.network, world.socket(WATCHDOG), me, world.clock, self.wake)
        self.clients = {r: SimClient(world.network, world.socket(r), me, world.clock, self.wake) for r in SERVICES}
        self._perform(self.core.start(now_s))

    # -- one turn of the loop --------------------------------------------------------------------------------
    def turn(self) -> None:
        if self.core is None and not self._open():
            return
        while self._later:
            self._handle(self._later.popleft())
        self._collect_dead()
        while self._orders:
            order = self._orders.popleft()
            self.is_stop_asked = self.is_stop_asked or isinstance(order, StopAsked)
            self._handle(order)
        self._hear()
        self._look_at_tree()
        self._tick()
        now_s = self.world.clock.now_s
        if self.quit is not None and (self._clearing is None or now_s >= self._quit_s + REMAINS_S_MAX):
            self._leave(self.quit)
            return
        assert self.core is not None
        due_s = min(self._tick_s, self.core.next_due_s() or self._tick_s)
        if self._clearing is not None:
            due_s = min(due_s, now_s + LOOK_S)
        self.wake(max(WAIT_S_MIN, due_s - now_s))

    def _handle(self, event: Event) -> None:
        assert self.core is not None
        actions = self.core.handle(event, self.world.clock.now_s)
        self.world.note(history.CoreActed(event, actions))
        self._perform(actions)

    def _tick(self) -> None:
        assert self.core is not None
        now_s, due_s = self.world.clock.now_s, self.core.next_due_s()
        if now_s < self._tick_s and (due_s is None or now_s < due_s):
            return
        self._tick_s = now_s + TICK_S
        for client in self.clients.values():
            self._greet(client)
        self.server.tick()
        self.server.forget("cli", 2**31)
        self._handle(self._reading())

    def _reading(self) -> Ticked:
        trainer = self.children.get(TRAINER)
        is_stopped = trainer is not None and trainer.is_frozen
        assert self.core is not None
        room = 2**40 if self.core.standby.is_due(self.world.clock.now_s) else None
        quiet = [role for role, service in self.core.services.items() if service.is_quiet]
        doing = {role: STOPPED if self.children[role].is_frozen else "" for role in quiet if role in self.children}
        return Ticked(self._beats(), self.world.memory.newest_step(), is_stopped, room, doing)

    def _beats(self) -> dict[str, Heartbeat]:
        beats = {role: self._beat(process) for role, process in self.children.items()}
        return {role: beat for role, beat in beats.items() if beat is not None}

    @staticmethod
    def _beat(process: Process) -> Heartbeat | None:
        if isinstance(process, Trainer):
            return process.beat()
        return process.heartbeat.read() if isinstance(process, ServiceProcess) else None

    # -- processes -------------------------------------------------------------------------------------------
    def child_died(self, process: Process, exit: Exit) -> None:
        """Its pidfd is readable."""
        self._dead.append((process, exit))
        self.wake(0.001)

    def _collect_dead(self) -> None:
        while self._dead:
            process, exit = self._dead.popleft()
            del self.children[process.role]
            if isinstance(process, Trainer):
                self.server.forget(TRAINER, process.incarnation)
                words = process.words if process.words.type else None
                memory_step = self.world.memory.newest_step()
                self._handle(Ended(TRAINER, process.incarnation, exit, process.beat(), words, memory_step))
            elif process.role == STANDBY:
                self._handle(Ended(STANDBY, process.incarnation, exit))
            else:
                self.clients[process.role].peer.outbox.forget()
                self._asked[process.role].clear()
                self._handle(Ended(process.role, process.incarnation, exit, self._beat(process)))

    def _look_at_tree(self) -> None:
        if self._clearing is not None and self.world.clear_tree():
            incarnation, self._clearing = self._clearing, None
            self._handle(TreeGone(incarnation))

    def _spawn(self, role: str, incarnation: int) -> None:
        self.world.note(history.SpawnAsked(role, incarnation))
        error = self.world.why_not_spawned(role)
        if error:
            self._handle(NotSpawned(role, incarnation, error))
            return
        start = msgspec.structs.replace(self.start, role=role, incarnation=incarnation)
        child: Process
        if role == TRAINER:
            child = Trainer(self.world, incarnation, self.run_id, self._settings.launch.grace_s)
        elif role == STANDBY:
            child = StandbyProcess(self.world, incarnation, self._hear_standby)
        else:
            child = ServiceProcess(self.world, start, self.world.socket(role))
        self.children[role] = child
        self._handle(Spawned(role, incarnation, child.pid))

    # -- the standby -----------------------------------------------------------------------------------------
    def _hear_standby(self, number: int, seconds: float) -> None:
        if not self.is_dead:
            self._later.append(StandbySaid(number, Waiting(100, seconds)))
            self.wake()

    def _promote(self, number: int, incarnation: int) -> None:
        standby = self._find(STANDBY, number)
        self.world.note(history.SpawnAsked(TRAINER, incarnation))
        if not isinstance(standby, StandbyProcess) or standby.is_dead or self.world.writer_lock_is_held():
            self._handle(NotPromoted(number, incarnation, "it is gone"))
            return
        del self.children[STANDBY]
        standby.become_another()
        trainer = Trainer(self.world, incarnation, self.run_id, self._settings.launch.grace_s, standby)
        self.children[TRAINER] = trainer
        self.world.clock.after(PROMOTION_S, lambda: self._has_begun(number, trainer))

    def _has_begun(self, number: int, trainer: Trainer) -> None:
        if trainer.is_frozen and not trainer.is_dead:
            self.world.clock.at(trainer.frozen_until_s, lambda: self._has_begun(number, trainer))
        elif not trainer.is_dead and not self.is_dead:
            self._later.append(Promoted(number, trainer.incarnation, trainer.pid))
            self.wake()

    def _find(self, role: str, incarnation: int) -> Process | None:
        child = self.children.get(role)
        return child if child is not None and child.incarnation == incarnation else None

    # -- messages --------------------------------------------------------------------------------------------
    def stop(self, source: str, now: bool) -> None:
        """A signal, or `procsv stop`."""
        self._orders.append(StopAsked(source, now))
        self.wake()

    def restart(self) -> None:
        """`procsv restart`."""
        trainer = self.children.get(TRAINER)
        if trainer is not None:
            self.preempted.add(trainer.pid)
        self._orders.append(RecycleAsked("procsv restart", by_hand=True))
        self.wake()

    def preempt(self, grace_s: float) -> None:
        """The machine is to go away under the trainer."""
        trainer = self.children.get(TRAINER)
        if trainer is not None:
            self.preempted.add(trainer.pid)
        self._orders.append(PreemptAsked(grace_s, "a notice"))
        self.wake()

    def _hear(self) -> None:
        while (received := self.server.receive()) is not None:
            self._heard_at_control(received)
        for role, client in self.clients.items():
            self._greet(client)
            while (received := client.receive()) is not None:
                self._heard_from_service(role, client, received)

    def _greet(self, client: SimClient) -> None:
        if client.tick():
            client.send_reliable(Hello(self.pid))
            client.tick()

    def _heard_at_control(self, received: Received) -> None:
        if isinstance(received.body, StatusRequest):
            self._handle(self._reading())
            self.server.send(received.who, Status(msgspec.json.encode(self._status())), re=received.seq)
            return
        self.world.note(history.Received(WATCHDOG, received.role, received.incarnation, type(received.body).__name__))
        if received.role == TRAINER:
            self._handle(Said(TRAINER, received.incarnation, received.body))
        self.server.acknowledge(received)

    def _heard_from_service(self, role: str, client: SimClient, received: Received) -> None:
        if isinstance(received.answers, Hello):
            self._handle(ServiceReady(role, received.incarnation))
        if isinstance(received.body, Durable):
            self.world.note(history.Acknowledged(received.body, WATCHDOG))
        asked = None
        if isinstance(received.body, FlushDone):
            found = self._asked[role].pop(received.re, None)
            asked = found if isinstance(found, TrainerExited | Finish) else None
        self._handle(Said(role, received.incarnation, received.body, asked))
        client.acknowledge(received)

    def _tell(self, role: str, body: Message) -> None:
        if role == TRAINER:
            self.server.broadcast(body, (TRAINER,))
        else:
            self._asked[role][self.clients[role].send_reliable(body)] = body

    # -- what the core says ----------------------------------------------------------------------------------
    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            self._perform_one(action)

    def _perform_one(self, action: Action) -> None:
        match action:
            case Spawn(role, incarnation):
                self._spawn(role, incarnation)
            case Promote(number, incarnation):
                self._promote(number, incarnation)
            case Signal(role, incarnation, number):
                child = self._find(role, incarnation)
                assert child is None or isinstance(child, Trainer | ServiceProcess), f"signal {number} to {role}"
                if child is not None and not child.is_dead:
                    child.hear_signal(number)
            case KillTree(role, incarnation):
                child = self._find(role, incarnation)
                if child is not None:
                    child.die(KILLED, "watchdog")
            case ClearTree(incarnation):
                self._clearing = incarnation
                self._look_at_tree()
            case Tell(role, body):
                self._tell(role, body)
            case Journal(event, role, incarnation, fields):
                self.world.note(history.Journaled(event, role, incarnation, fields))
            case WriteRun():
                self.world.run_json = self._run_file()
            case Report() | Say():
                pass  # for people
            case Quit() as quit:
                self.quit, self._quit_s = quit, self.world.clock.now_s
            case _:
                raise AssertionError(f"the simulation does not know {action}")

    def _run_file(self) -> RunFile:
        assert self.core is not None
        return run_file(self.facts, self.core, self.world.clock.now_s, self.world.clock.wall())

    def _status(self) -> dict[str, object]:
        assert self.core is not None
        nothing: dict[str, float | int] = {"uptime": 0.0, "rss": 0, "cpu": 0.0}
        usage = dict.fromkeys((WATCHDOG, TRAINER, STANDBY, *SERVICES), nothing)
        return status_object(
            self._run_file(), self.core, self._beats(), usage, self.server.refused, self.world.clock.now_s
        )

    # -- the end ---------------------------------------------------------------------------------------------
    def _leave(self, quit: Quit) -> None:
        self.world.run_json = self._run_file()
        self.world.clear_tree()
        self.world.clear_run(quit.keep_memory)
        self.die(Exit(quit.exit_code, None), "itself")

    def let_go(self) -> None:
        if self.core is not None:
            for client in self.clients.values():
                client.close()
            self.server.close()

    @property
    def control(self) -> Path:
        return self.world.socket(WATCHDOG)
