"""The watchdog's edge: one loop over pidfds, sockets, signals and time, which feeds the core and does what it says.

Called by host.py.  Decides nothing.  Imports no TensorFlow and nothing else that is heavy: a watchdog must be the last
process that the machine has no room for.
"""

from __future__ import annotations

import math
import os
import signal
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from procsv.base.failpoints import declare, failpoint
from procsv.base.run.run_file import RunFile
from procsv.faults.plan import Plan
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.messages import (
    Finish,
    FlushDone,
    Hello,
    Message,
    RestartTrainer,
    Status,
    StatusRequest,
    StopRun,
    TrainerExited,
)
from procsv.ipc.messaging.zmq_transport import Client, Server, Waiter, new_context
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.ipc.shm.heartbeat_file import HeartbeatReader
from procsv.watchdog.core.events import (
    SERVICES,
    STANDBY,
    SUMMARY,
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
    Quit,
    RecycleAsked,
    Report,
    Said,
    Say,
    ServiceReady,
    Signal,
    Spawn,
    Spawned,
    StopAsked,
    Tell,
    Ticked,
    TreeGone,
    WriteRun,
)
from procsv.watchdog.core.lifecycle import State
from procsv.watchdog.edge.event_hook import LAST_S_MAX, EventHook
from procsv.watchdog.edge.faults.injector import Hands, Injector
from procsv.watchdog.edge.post_mortem import clear, last_words, memory_step, service_ended, stacks
from procsv.watchdog.edge.processes import Processes, Running, measure
from procsv.watchdog.edge.resources.gpu import Gpus
from procsv.watchdog.edge.resources.oom import KillCounters, over_limit, tree_rss
from procsv.watchdog.edge.run_records import RunRecords
from procsv.watchdog.edge.standby_link import Promoter, room_for_standby
from procsv.watchdog.edge.status import Facts, run_file, status_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from procsv.base.clock import Clock
    from procsv.ipc.messaging.start import Start
    from procsv.watchdog.core.run import Core
    from procsv.watchdog.edge.console import Console
    from procsv.watchdog.edge.signals import Signals

HEARD_MAX = 1000  # messages at the control socket in one turn of the loop; then everything else has its own
declare("watchdog.back_off", "watchdog.mid_stop", "watchdog.rewriting_status")

TICK_S = 0.5  # how often heartbeats are read; a step in `status` is at most this old
RUN_JSON_S = 1.0  # how often run.json follows the step
CLEAR_S = 0.02  # how often a dead trainer's tree is looked at until it is gone
SOCKET_S = 5.0  # how often the control socket is looked at: temp sweepers delete sockets
REMAINS_S_MAX = 5.0  # how long the end of the run waits for killed processes to be gone
WAIT_S_MIN = 0.005  # a deadline that is past and changes nothing does not make the loop spin


class Reactor:
    def __init__(
        self,
        facts: Facts,
        core: Core,
        start: Start,
        processes: Processes,
        console: Console,
        clock: Clock,
        signals: Signals,
    ) -> None:
        self._facts, self._core, self._processes, self._console = facts, core, processes, console
        self._clock, self._signals, self._paths = clock, signals, start.paths
        self._me = Address(start.run, WATCHDOG, 1)
        self._usage = psutil.Process()
        self._usage.cpu_percent()
        self.records = RunRecords(self._paths, clock, lambda text: console.say(text, is_bad=True))
        self._context = new_context()
        self._server = Server(self._context, self._paths.control_socket, self._me, clock)
        self._clients = {
            role: Client(self._context, self._paths.service_socket(role), self._me, clock) for role in SERVICES
        }
        self._asked: dict[str, dict[int, Message]] = {role: {} for role in SERVICES}  # what FlushDone will answer
        self._heartbeats: dict[str, HeartbeatReader] = {}
        self._clearing: int | None = None  # the trainer's incarnation whose tree is being cleared
        self._quit: Quit | None = None
        self._quit_s = 0.0
        self._tick_s = self._run_json_s = clock.monotonic()
        self._socket_s = clock.monotonic() + SOCKET_S
        self._kills, self._gpus = KillCounters.of_this_process(), Gpus()
        self._event_hook = EventHook.of(start, self._console, os.environ)
        self._processes.helpers = lambda: self._event_hook.pids
        hands = Hands(processes, self._tell, self._journal, self._preempt)
        self._injector = Injector(Plan.decode(start.settings.plan), self._paths, hands, clock.monotonic())
        self._waiter = Waiter()
        self._promoter = Promoter(processes, self._waiter, self._handle)
        self._waiter.add(self._server)
        self._waiter.add(signals.fd)
        for client in self._clients.values():
            self._waiter.add(client)

    # -- the loop ------------------------------------------------------------------------------------------
    def run(self) -> Quit:
        """Runs the run to its end; how it is to be left."""
        self._perform(self._core.start(self._clock.monotonic()))
        while self._quit is None or self._has_remains():
            self._waiter.wait(self._pause_s())
            self._promoter.hear()  # first: what it has said before it died, and before it speaks as the trainer
            self._collect_dead()
            for asked in self._signals.take():
                self._handle(StopAsked(asked.source, asked.now, asked.is_notice))
            self._hear()
            self._look_at_tree()
            self._tick()
            self._injector.tick(self._clock.monotonic(), self._core.task.step)
        return self._quit

    def _has_remains(self) -> bool:
        """At the end of the run: killed processes are on their way out, or commands hear of what has happened."""
        past_s = self._clock.monotonic() - self._quit_s
        return (self._clearing is not None and past_s < REMAINS_S_MAX) or (
            self._event_hook.is_busy and past_s < LAST_S_MAX
        )

    def _pause_s(self) -> float:
        now_s = self._clock.monotonic()
        dues = [self._tick_s, self._core.next_due_s() or self._tick_s, self._injector.next_due_s(now_s) or self._tick_s]
        if self._clearing is not None or self._quit is not None:
            dues.append(now_s + CLEAR_S)
        return max(WAIT_S_MIN, min(dues) - now_s)

    def _handle(self, event: Event) -> None:
        self._perform(self._core.handle(event, self._clock.monotonic()))

    def _tick(self) -> None:
        now_s = self._clock.monotonic()
        due_s = self._core.next_due_s()
        if now_s < self._tick_s and (due_s is None or now_s < due_s):
            return
        self._tick_s = now_s + TICK_S
        self._event_hook.tick(now_s)
        for client in self._clients.values():
            self._greet(client)
        self._server.tick()
        self._server.forget("cli", 2**31)  # each command is a peer of its own, and gone after its answer
        self._processes.reap_strays()
        self._handle(self._reading())
        if now_s >= self._run_json_s:
            self._write_run()
            self._look_at_memory()
        self._say_figures(now_s)
        if now_s >= self._socket_s:
            self._socket_s = now_s + SOCKET_S
            self._look_at_socket()

    def _reading(self) -> Ticked:
        """The heartbeats and the memory as they are now."""
        beats = {role: beat for role, reader in self._heartbeats.items() if (beat := reader.read()) is not None}
        core, room = self._core, None
        if core.standby.is_due(self._clock.monotonic()):
            room = room_for_standby(core.task.pid, core.settings.launch.memory_limit)
        doing = {role: self._processes.doing(role) for role, service in core.services.items() if service.is_quiet}
        return Ticked(beats, memory_step(self._paths), self._processes.is_stopped(TRAINER), room, doing)

    def _look_at_memory(self) -> None:
        task, limit = self._core.task, self._core.settings.launch.memory_limit
        used = tree_rss(task.pid) if limit and task.life.state is State.RUNNING else 0
        if why := over_limit(used, limit):
            self._handle(RecycleAsked(why, by_hand=False))

    # -- processes -----------------------------------------------------------------------------------------
    def _collect_dead(self) -> None:
        for running in self._processes.ended():
            self._waiter.remove(running.child.pidfd)
            self._promoter.let_go(running)
            exit = running.child.reap()
            oom = self._kills.news() if exit.signal == signal.SIGKILL else ""
            reader = self._heartbeats.pop(running.role, None)
            beat: Heartbeat | None = None
            if reader is not None:
                beat = reader.read()
                reader.close()
                reader.path.unlink(missing_ok=True)
            if running.role == TRAINER:
                number, paths = running.incarnation, self._paths
                self._server.forget(TRAINER, number)
                words, written = last_words(paths, number), stacks(paths, number)
                event = Ended(TRAINER, number, exit, beat, words, memory_step(paths), written, oom)
                self._gpus.expect_to_leave(running.child.pid, self._clock.monotonic())
            elif running.role == STANDBY:
                event = Ended(STANDBY, running.incarnation, exit)
            else:
                self._clients[running.role].peer.outbox.forget()  # its successor is told anew by the core
                self._asked[running.role].clear()
                event = service_ended(running.role, running.incarnation, exit, beat, oom, running.log)
            self._handle(event)
            if running.role == TRAINER:
                clear(self._paths, running.incarnation)  # killed here: the next launch tidies

    def _look_at_tree(self) -> None:
        incarnation = self._clearing
        if incarnation is None or not (self._processes.clear_tree() and self._gpus.are_left(self._clock.monotonic())):
            return
        self._clearing = None
        self._handle(TreeGone(incarnation))

    def _spawn(self, role: str, incarnation: int, standby: str = "") -> None:
        self._paths.heartbeat(role, incarnation).unlink(missing_ok=True)
        try:
            running = self._processes.spawn(role, incarnation, standby)
        except OSError as error:
            self._handle(NotSpawned(role, incarnation, str(error)))
            return
        self._waiter.add(running.child.pidfd)
        self._promoter.begin(running)
        if role != STANDBY:
            self._heartbeats[role] = HeartbeatReader(self._paths.heartbeat(role, incarnation))
        if role == TRAINER:
            self._console.follow(running.log)
        self._handle(Spawned(role, incarnation, running.child.pid))

    def _promote(self, number: int, incarnation: int) -> None:
        try:
            running = self._promoter.promote(number, incarnation)
        except OSError as error:
            self._handle(NotPromoted(number, incarnation, str(error)))
            return
        self._heartbeats[TRAINER] = HeartbeatReader(self._paths.heartbeat(TRAINER, incarnation))
        self._console.follow(running.log)

    # -- messages ------------------------------------------------------------------------------------------
    def _hear(self) -> None:
        for _ in range(HEARD_MAX):
            if (received := self._server.receive()) is None:
                break
            self._heard_at_control(received)
        for role, client in self._clients.items():
            self._greet(client)
            while (received := client.receive()) is not None:
                self._heard_from_service(role, client, received)

    def _greet(self, client: Client) -> None:
        if client.tick():
            client.send_reliable(Hello(os.getpid()))

    def _heard_at_control(self, received: Received) -> None:
        match received.body:
            case StatusRequest():
                self._handle(self._reading())
                self._server.send(received.who, Status(msgspec.json.encode(self._status())), re=received.seq)
            case RestartTrainer():
                self._handle(RecycleAsked("procsv restart", by_hand=True))
                self._server.acknowledge(received)
            case StopRun(now):
                self._handle(StopAsked("procsv stop", now))
                self._server.acknowledge(received)  # what it asks for is written down by now
            case body:
                if received.role == TRAINER:
                    self._handle(Said(TRAINER, received.incarnation, body))
                self._server.acknowledge(received)

    def _heard_from_service(self, role: str, client: Client, received: Received) -> None:
        answered = received.answers
        if isinstance(answered, Hello):
            self._handle(ServiceReady(role, received.incarnation))
        asked = None
        if isinstance(received.body, FlushDone):
            found = self._asked[role].pop(received.re, None)
            asked = found if isinstance(found, TrainerExited | Finish) else None
        self._handle(Said(role, received.incarnation, received.body, asked))
        client.acknowledge(received)

    def _tell(self, role: str, body: Message) -> None:
        if role == SUMMARY and isinstance(body, Finish):
            self._say_figures(math.inf)  # the last ones: after these it ends
        if role == TRAINER:
            self._server.broadcast(body, (TRAINER,))
        else:
            self._asked[role][self._clients[role].send_reliable(body)] = body

    def _preempt(self, grace_s: float) -> None:
        self._handle(PreemptAsked(grace_s, "a fault of the plan"))

    def _say_figures(self, now_s: float) -> None:
        figures = self.records.figures.due(now_s, self._clock.wall(), self._core.task.step)
        if figures is not None:
            self._clients[SUMMARY].send(figures)

    def _look_at_socket(self) -> None:
        """Binds the control socket again if something has deleted it; peers come back by themselves."""
        if self._server.is_in_place() or self._paths.control_socket.exists():
            return
        peers, dropped = self._server.peers, self._server.dropped
        self._waiter.remove(self._server)
        self._server.close()
        self._server = Server(self._context, self._paths.control_socket, self._me, self._clock)
        self._server.peers, self._server.dropped = peers, dropped
        self._waiter.add(self._server)
        self._console.say("something deleted the control socket; made it again", is_bad=True)

    # -- what the core says --------------------------------------------------------------------------------
    def _perform(self, actions: list[Action]) -> None:
        """Does it, in order; what a Spawn leads to is done before the action after it."""
        for action in actions:
            self._perform_one(action)

    def _perform_one(self, action: Action) -> None:
        match action:
            case Spawn(role, incarnation, standby):
                self._spawn(role, incarnation, standby)
            case Promote(number, incarnation):
                self._promote(number, incarnation)
            case Signal(role, incarnation, number):
                failpoint("watchdog.mid_stop")
                self._with(role, incarnation, lambda running: running.child.signal(number))
            case KillTree(role, incarnation):
                self._with(role, incarnation, lambda running: running.child.signal_tree(signal.SIGKILL))
            case ClearTree(incarnation):
                self._clearing = incarnation
                self._look_at_tree()
            case Tell(role, body):
                self._tell(role, body)
            case Journal(event, role, incarnation, fields):
                self._journal(event, role, incarnation, fields)
            case WriteRun():
                self._write_run()
            case Report() as report:
                self.records.write_report(report, self._run_file(), self._paths.log(TRAINER, report.incarnation))
            case Say(text, is_bad, traceback):
                self._console.say(text, is_bad, traceback)
            case Quit() as quit:
                self._quit, self._quit_s = quit, self._clock.monotonic()

    def _with(self, role: str, incarnation: int, act: Callable[[Running], None]) -> None:
        running = self._processes.find(role, incarnation)
        if running is not None:
            act(running)

    def _journal(self, event: str, role: str, incarnation: int, fields: dict[str, Any]) -> None:
        self.records.append(event, role, incarnation, fields)
        if event == "restarting":
            failpoint("watchdog.back_off")
        entry = {"time": self._clock.wall(), "event": event, "role": role, "incarnation": incarnation, **fields}
        self._event_hook.offer(entry, self._clock.monotonic())

    def _write_run(self) -> None:
        """Not fsynced: while a checkpoint goes to a busy disk, that would keep `status` and the dead waiting."""
        self._run_json_s = self._clock.monotonic() + RUN_JSON_S
        failpoint("watchdog.rewriting_status")
        self.records.write_run(self._run_file(), durable=False)

    def _run_file(self) -> RunFile:
        return run_file(self._facts, self._core, self._clock.monotonic(), self._clock.wall())

    def _status(self) -> dict[str, object]:
        beats = {role: beat for role, reader in self._heartbeats.items() if (beat := reader.read()) is not None}
        uptime = round(self._clock.monotonic() - self._core.started_s, 1)
        usage = {role: self._processes.usage(role) for role in (TRAINER, STANDBY, *SERVICES)}
        usage[WATCHDOG] = {"uptime": uptime, **measure(self._usage)}
        refused = self._server.refused + sum(client.refused for client in self._clients.values())
        return status_object(self._run_file(), self._core, beats, usage, refused, self._clock.monotonic())

    def close(self) -> RunFile:
        """Lets go of everything but the lock; the last state, for run.json."""
        run = self._run_file()
        self._event_hook.close()
        for client in self._clients.values():
            client.close(linger_ms=0)
        self._server.close()
        self._context.term()
        for reader in self._heartbeats.values():
            reader.close()
        return run
