"""The watchdog's event loop: feeds the core with what happens, and does what the core says.

Made by main.py.  Decides nothing, and touches the world only through its environment.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, assert_never

import msgspec

from procsv.base.errors import UserError
from procsv.base.identity import COMMAND_LINE, STANDBY, WATCHDOG, TaskId
from procsv.base.run.manifest import saved_step
from procsv.base.run.paths import shorten_path
from procsv.base.run.run_file import RunFile
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.messaging import messages
from procsv.ipc.messaging.endpoint import ClientEndpoint, Received
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.watchdog.core import actions, events, wording
from procsv.watchdog.core.ground import SOCKET
from procsv.watchdog.core.lifecycle import State
from procsv.watchdog.core.run import Core
from procsv.watchdog.core.trainer import TrainerSupervisor
from procsv.watchdog.edge.environment import Dead, Environment, FaultReach
from procsv.watchdog.edge.event_hook import LAST_S_MAX
from procsv.watchdog.edge.resources.memory import over_limit
from procsv.watchdog.edge.status import Facts, run_file, status_object

HEARD_MAX = 1000  # messages at the control socket in one turn of the loop; then everything else has its own
declare("watchdog.back_off", "watchdog.mid_stop", "watchdog.rewriting_status")

TICK_S = 0.5  # how often heartbeats are read; a step in `status` is at most this old
RUN_JSON_S = 1.0  # how often run.json follows the step
CLEAR_S = 0.02  # how often a dead trainer's tree is looked at until it is gone
GROUND_S = 2.0  # how often the run's directories, sockets and locks are looked at
REMAINS_S_MAX = 5.0  # how long the end of the run waits for killed processes to be gone
WAIT_S_MIN = 0.005  # a deadline that is past and changes nothing does not make the loop spin


class Reactor:
    def __init__(self, core: Core, facts: Facts, environment: Environment) -> None:
        self._core, self._facts, self._env = core, facts, environment
        self._clock, self._processes = environment.clock, environment.processes
        self._sockets, self._heartbeats, self._remote = environment.sockets, environment.heartbeats, environment.remote
        self._paths = facts.start.paths
        self._asked: dict[TaskId, dict[int, messages.Message]] = {
            task: {} for task in core.services
        }  # what FlushDone will answer
        self._clearing: dict[TaskId, int] = {}  # the incarnations whose trees are being cleared
        self._quit: actions.Quit | None = None
        self._quit_s = 0.0
        self._tick_s = self._run_json_s = self._clock.monotonic()
        self._ground_s = self._tick_s
        reach = FaultReach(self._tell_task, self._journal, self._preempt, self._attempt, self._say)
        self._injector = environment.make_injector(reach)

    # -- the loop ------------------------------------------------------------------------------------------
    def run(self) -> actions.Quit:
        """Runs the run to its end; how it is to be left."""
        self.start()
        while (quit := self.result) is None:
            self._wait()
            self.run_once()
        return quit

    def _wait(self) -> None:
        """Until something has happened, or is due.  Beats of other machines, which come all the time, are heard by the way."""
        left_s = self.pause_s()
        until_s = self._clock.monotonic() + left_s
        while self._remote.hears_beats_alone(self._sockets.wait_for_news(left_s)):
            if (left_s := until_s - self._clock.monotonic()) <= 0.0:
                return

    def start(self) -> None:
        self._write_run()  # whoever hears that the run has begun finds it
        for task, adopted in self._core.settings.adopted.items():
            self._follow_log(task, adopted.incarnation)
        self._perform(self._core.start(self._clock.monotonic()))

    def run_once(self) -> None:
        """One round: hears all that has happened."""
        self._keep_logdir()  # before anything is written: another machine may have it, if this one has stood still
        self._hear_standby()  # first: what it has said before it died
        for dead in self._processes.ended():
            self._process_ended(dead)
        for asked in self._env.signals.take_requests():
            self.handle(asked)
        self._hear()
        self._hear_remote()
        self._look_at_tree()
        self._check_deadlines()
        self._injector.inject_due_faults(self._clock.monotonic(), self._core.chief.step)

    @property
    def result(self) -> actions.Quit | None:
        """How the run is to be left, once it is over and nothing remains to be done."""
        return None if self._quit is None or self._has_remains() else self._quit

    def _has_remains(self) -> bool:
        """At the end of the run: killed processes are on their way out, or commands hear of what has happened."""
        past_s = self._clock.monotonic() - self._quit_s
        return (bool(self._clearing) and past_s < REMAINS_S_MAX) or (
            self._env.event_hook.is_busy and past_s < LAST_S_MAX
        )

    def pause_s(self) -> float:
        """How long until the next turn, if nothing happens before."""
        now_s = self._clock.monotonic()
        dues = [self._tick_s, self._core.next_due_s() or self._tick_s, self._injector.next_due_s(now_s) or self._tick_s]
        if self._clearing or self._quit is not None:
            dues.append(now_s + CLEAR_S)
        return max(WAIT_S_MIN, min(dues) - now_s)

    def handle(self, event: events.Event) -> None:
        self._perform(self._core.handle(event, self._clock.monotonic()))

    def _check_deadlines(self) -> None:
        now_s = self._clock.monotonic()
        due_s = self._core.next_due_s()
        if now_s < self._tick_s and (due_s is None or now_s < due_s):
            return
        self._tick_s = now_s + TICK_S
        self._env.event_hook.run_commands(now_s)
        for client in self._sockets.clients.values():
            self._greet(client)
        self._remote.keep_in_touch(now_s)
        self._sockets.server.tick()
        self._sockets.server.forget(COMMAND_LINE, 2**31)  # each command is a peer of its own, and gone after its answer
        self._processes.reap_strays()
        self._env.log_growth.note_growth()
        self.handle(self._reading())
        if self._env.console.is_live:
            self._env.console.show(self._run_file(), now_s)
        if now_s >= self._run_json_s:
            self._write_run()
            self._look_at_memory()
        self._send_metrics(now_s)
        if now_s >= self._ground_s:
            self._ground_s = now_s + GROUND_S
            self._look_at_ground()

    def _keep_logdir(self) -> None:
        if taker := self._env.held.keep(self._clock.monotonic()):
            self._env.records.stop_writing()
            self._env.log_growth.stop_writing()
            self.handle(events.LogdirTaken(taker))

    def _reading(self) -> events.Ticked:
        """The heartbeats and the memory as they are now."""
        core, room, now_s, resources = self._core, None, self._clock.monotonic(), self._env.resources
        if core.standby.is_due(now_s):
            room = resources.room_for_standby(core.chief.pid, core.settings.launch.memory_limit)
        doing = {task: self._processes.doing(task) for task, service in core.services.items() if service.is_quiet}
        stopped = frozenset(task for task in core.tasks if self._processes.is_stopped(task)) | self._remote.stopped()
        activity = {
            name: resources.tree_activity(task.pid) for name, task in self._own_tasks() if task.wants_activity(now_s)
        }
        memory_step = self._env.post_mortem.snapshot_step(core.chief.task)
        return events.Ticked(self._read_beats(), memory_step, stopped, room, doing, activity)

    def _read_beats(self) -> dict[TaskId, Heartbeat]:
        return self._heartbeats.read() | self._remote.beats()

    def _own_tasks(self) -> list[tuple[TaskId, TrainerSupervisor]]:
        """Those of this machine."""
        return [(name, task) for name, task in self._core.tasks.items() if not self._remote.hosts(name)]

    def _look_at_memory(self) -> None:
        limit = self._core.settings.launch.memory_limit
        for name, task in self._own_tasks():
            used = self._env.resources.tree_rss(task.pid) if limit and task.life.state is State.RUNNING else 0
            if why := over_limit(used, limit):
                self.handle(events.RecycleAsked(why, False, name))

    def _look_at_ground(self) -> None:
        self.handle(events.GroundSeen(self._env.ground.sights()))
        if not self._core.ground.is_settled:
            self._ground_s = 0.0  # at the next tick: what is lost may be back

    def _restore(self, what: str, path: str) -> None:
        try:
            if what == SOCKET:
                self._sockets.restore_server()
            else:
                self._env.ground.restore(what, path)
        except (OSError, UserError) as error:
            self.handle(events.NotRestored(path, getattr(error, "strerror", None) or str(error)))

    # -- processes -----------------------------------------------------------------------------------------
    def _process_ended(self, dead: Dead) -> None:
        self._env.log_growth.note_end(dead.task, dead.incarnation)
        beat = self._heartbeats.drop(dead.task)
        if dead.task in self._core.tasks:
            self._sockets.server.forget(dead.task, dead.incarnation)
        elif dead.task in self._core.services:
            self._sockets.clients[dead.task].peer.outbox.forget()  # its successor is told anew by the core
            self._asked[dead.task].clear()
        fault = self._injector.fault_behind(dead.task, dead.incarnation, dead.exit)
        self.handle(msgspec.structs.replace(self._env.post_mortem.examine(dead, beat), fault=fault))
        self._env.post_mortem.clear(dead)  # killed here: the next launch tidies

    def _look_at_tree(self) -> None:
        for task, incarnation in list(self._clearing.items()):
            if self._processes.clear_tree(task):
                del self._clearing[task]
                self.handle(events.TreeGone(task, incarnation))

    def _spawn(self, task: TaskId, incarnation: int, standby: str) -> None:
        try:
            if task != STANDBY:
                self._heartbeats.follow(task, incarnation)
            pid = self._processes.spawn(task, incarnation, standby)
        except OSError as error:
            self._heartbeats.drop(task)
            self.handle(events.NotSpawned(task, incarnation, str(error)))
            return
        self._follow_log(task, incarnation)
        self.handle(events.Spawned(task, incarnation, pid))

    def _promote(self, number: int, task: TaskId, incarnation: int) -> None:
        try:
            self._heartbeats.follow(task, incarnation)
            self._env.standby.promote(number, task, incarnation)
        except OSError as error:
            self._heartbeats.drop(task)
            self.handle(events.NotPromoted(number, task, incarnation, str(error)))
            return
        self._follow_log(task, incarnation)

    def _follow_log(self, task: TaskId, incarnation: int) -> None:
        self._env.log_growth.note_start(task, incarnation)
        if task == self._core.chief.task:
            self._env.console.follow(self._paths.log(task, incarnation))

    # -- messages ------------------------------------------------------------------------------------------
    def _hear_standby(self) -> None:
        for event in self._env.standby.hear():
            if isinstance(event, events.NotPromoted):
                self._heartbeats.drop(event.task)
                self._env.log_growth.note_end(event.task, event.incarnation)
            self.handle(event)

    def _hear_remote(self) -> None:
        for event in self._remote.hear():
            match event:
                case events.Spawned(task, incarnation):
                    self._follow_log(task, incarnation)
                case events.Ended(task, incarnation):
                    self._env.log_growth.note_end(task, incarnation)
                    fault = self._injector.fault_behind(task, incarnation, event.exit)
                    event = msgspec.structs.replace(event, fault=fault)
            self.handle(event)

    def _hear(self) -> None:
        for _ in range(HEARD_MAX):
            if (received := self._sockets.server.receive()) is None:
                break
            if received.task in self._core.tasks:
                self._hear_standby()  # who has just become the trainer has told of it before it says anything else
            self._heard_at_control(received)
        for task, client in self._sockets.clients.items():
            self._greet(client)
            while (received := client.receive()) is not None:
                self._heard_from_service(task, client, received)

    def _greet(self, client: ClientEndpoint) -> None:
        if client.tick():
            client.send_reliable(messages.Hello(self._facts.watchdog.pid))

    def _heard_at_control(self, received: Received) -> None:
        match received.body:
            case messages.StatusRequest():
                self.handle(self._reading())
                self._sockets.server.send(
                    received.who, messages.Status(msgspec.json.encode(self._status())), re=received.seq
                )
            case messages.RestartTrainer() if self._core.settings.observes:
                self._sockets.server.send(received.who, messages.CannotRestart(), re=received.seq)
            case messages.RestartTrainer():
                self.handle(events.RecycleAsked("procsv restart", by_hand=True))
                self._sockets.server.acknowledge(received)
            case messages.AdoptLogdir(logdir) if self._is_running(received):
                answer = messages.LogdirAdopted(self._adopt_logdir(received, logdir))
                self._sockets.server.send_reliable(received.who, answer, re=received.seq)
            case messages.StopRun(now):
                self.handle(events.StopAsked("procsv stop", now))
                self._sockets.server.acknowledge(received)  # what it asks for is written down by now
            case body:
                if received.task in self._core.tasks:
                    self.handle(events.Said(received.task, received.incarnation, body))
                self._sockets.server.acknowledge(received)

    def _is_running(self, received: Received) -> bool:
        """Whether a task has said that, and by the attempt that runs now."""
        task = self._core.tasks.get(received.task)
        return task is not None and task.incarnation == received.incarnation

    def _adopt_logdir(self, received: Received, logdir: str) -> str:
        """Why the program's directory cannot be the run's logdir, or ""."""
        start = self._facts.start
        if start.root or not start.may_adopt(Path(logdir)):
            return "" if logdir == start.logdir else f"the run's logdir is {start.logdir}"
        try:
            self._env.held.adopt(Path(logdir))
        except UserError as error:
            return str(error)
        self._facts = msgspec.structs.replace(self._facts, start=start.with_logdir(logdir))
        self._processes.use_logdir(logdir)
        shown, step = shorten_path(logdir), saved_step(Path(logdir))
        self.handle(events.LogdirAdopted(received.task, received.incarnation, logdir, shown, step))
        return ""

    def _heard_from_service(self, task: TaskId, client: ClientEndpoint, received: Received) -> None:
        answered = received.answers
        if isinstance(answered, messages.Hello):
            self.handle(events.ServiceReady(task, received.incarnation))
            self._look_at_ground()  # at what it has made: from here on it is missed
        asked = None
        if isinstance(received.body, messages.FlushDone):
            found = self._asked[task].pop(received.re, None)
            asked = found if isinstance(found, messages.TrainerExited | messages.Finish) else None
        self.handle(events.Said(task, received.incarnation, received.body, asked))
        client.acknowledge(received)

    def _tell(self, task: TaskId, body: messages.Message) -> None:
        if isinstance(body, messages.Finish) and self._core.services[task].spec.takes_events:
            self._send_metrics(math.inf)  # the last ones: after these it ends
        if task in self._core.tasks:
            self._sockets.server.broadcast(body, task)
        else:
            self._asked[task][self._sockets.clients[task].send_reliable(body)] = body

    # -- for the faults of a plan --------------------------------------------------------------------------
    def _tell_task(self, task: TaskId, body: messages.Message) -> None:
        """To a task, wherever it is, or to a service."""
        (self._remote.tell if self._remote.hosts(task) else self._tell)(task, body)

    def _attempt(self, task: TaskId) -> int:
        found = self._core.tasks.get(task)
        return found.incarnation if found is not None and found.pid else 0

    def _say(self, text: str) -> None:
        self._env.console.say(text, is_bad=True)

    def _preempt(self, grace_s: float, task: TaskId) -> None:
        self.handle(events.PreemptAsked(grace_s, "a fault of the plan", task))

    def _send_metrics(self, now_s: float) -> None:
        metrics = self._env.records.metrics_due(now_s, self._core.chief.step)
        for task, service in self._core.services.items():
            if metrics is not None and service.spec.takes_events:
                self._sockets.clients[task].send(metrics)

    # -- what the core says --------------------------------------------------------------------------------
    def _perform(self, todo: list[actions.Action]) -> None:
        """Does it, in order; what a Spawn leads to is done before the action after it."""
        for action in todo:
            match action:
                case actions.Spawn(task, incarnation) if self._remote.hosts(task):
                    self._remote.start(task, incarnation)
                case actions.Signal(task, incarnation, number) if self._remote.hosts(task):
                    self._remote.signal(task, incarnation, number)
                case actions.KillTree(task, incarnation) if self._remote.hosts(task):
                    self._remote.kill_tree(task, incarnation)
                case actions.ClearTree(task, incarnation) if self._remote.hosts(task):
                    self._remote.clear_tree(task, incarnation)
                case actions.Tell(task, body) if self._remote.hosts(task):
                    self._remote.tell(task, body)
                case actions.Spawn(task, incarnation, standby):
                    self._spawn(task, incarnation, standby)
                case actions.Promote(number, task, incarnation):
                    self._promote(number, task, incarnation)
                case actions.ImportMore(number):
                    self._env.standby.import_more(number)
                case actions.Signal(task, incarnation, number):
                    failpoint("watchdog.mid_stop")
                    self._processes.signal(task, incarnation, number)
                case actions.KillTree(task, incarnation):
                    self._processes.kill_tree(task, incarnation)
                case actions.ClearTree(task, incarnation, has_ended):
                    if has_ended and (left := self._processes.name_strays(task)):
                        self._env.console.say(wording.left_behind(left), is_bad=True)
                    self._clearing[task] = incarnation
                    self._look_at_tree()
                case actions.Tell(task, body):
                    self._tell(task, body)
                case actions.Journal(event, task, incarnation, fields):
                    self._journal(event, task, incarnation, fields)
                case actions.WriteRun():
                    self._write_run()
                case actions.Report() as report:
                    self._env.records.write_report(report, self._run_file())
                case actions.Say(text, is_bad, traceback):
                    self._env.console.say(text, is_bad, traceback)
                case actions.Restore(what, path):
                    self._restore(what, path)
                case actions.Quit() as quit:
                    self._quit, self._quit_s = quit, self._clock.monotonic()
                case _:
                    assert_never(action)

    def _journal(self, event: str, task: TaskId, incarnation: int, fields: dict[str, Any]) -> None:
        self._env.records.append(event, task, incarnation, fields)
        if event == "restarting":
            failpoint("watchdog.back_off")
        entry = {"time": self._clock.wall(), "event": event, "role": str(task), "incarnation": incarnation, **fields}
        self._env.event_hook.offer_event(entry, self._clock.monotonic())

    def _write_run(self) -> None:
        """Not fsynced: while a checkpoint goes to a busy disk, that would keep `status` and the dead waiting."""
        self._run_json_s = self._clock.monotonic() + RUN_JSON_S
        failpoint("watchdog.rewriting_status")
        run = self._run_file()
        self._env.manager.notify(run, self._clock.monotonic())
        if self._env.held.is_ours():  # else it would pass for ours again, once who has taken it lets go of it
            self._env.records.write_run(run, durable=False)

    def _run_file(self) -> RunFile:
        return run_file(self._facts, self._core, self._clock.monotonic(), self._clock.wall())

    def _status(self) -> dict[str, object]:
        usage = {
            task: self._remote.usage(task) if self._remote.hosts(task) else self._processes.usage(task)
            for task in (WATCHDOG, *self._core.tasks, STANDBY, *self._core.services)
        }
        refused = self._sockets.server.refused + sum(client.refused for client in self._sockets.clients.values())
        refused += self._remote.refused
        memory = self._env.resources.host_memory()
        beats, now_s = self._read_beats(), self._clock.monotonic()
        return status_object(self._run_file(), self._core, beats, usage, memory, refused, now_s)

    def close(self) -> RunFile:
        """Lets go of everything but the lock; the last state, for run.json."""
        run = self._run_file()
        self._env.manager.notify(run, self._clock.monotonic())
        self._env.manager.close()
        self._env.event_hook.close()
        self._env.log_growth.close()
        self._injector.close()
        self._sockets.close()
        self._heartbeats.close()
        return run
