"""Run the watchdog's event loop: feed events to the core, and carry out the core's actions.

main.py creates the Reactor, which is the event loop. It leaves all decisions about the run to the
core, and reaches files, processes and sockets only through its environment (environment.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import msgspec

from procsv.base.clock import first_due_s
from procsv.base.errors import UserError
from procsv.base.identity import COMMAND_LINE, TaskId
from procsv.base.journal.entries import Entry
from procsv.base.run.run_file import RunFile
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.messaging.message import Message
from procsv.watchdog.core import actions, events
from procsv.watchdog.core.run import Core
from procsv.watchdog.core.run_files import SOCKET
from procsv.watchdog.core.task.lifecycle import TaskState
from procsv.watchdog.core.task.trainer import TrainerSupervisor
from procsv.watchdog.edge.conversation import Conversation, Loop
from procsv.watchdog.edge.environment import Environment, FaultReach, Hosts
from procsv.watchdog.edge.resources.machine import over_limit
from procsv.watchdog.edge.status import Facts, Publisher
from procsv.watchdog.host.local_host import LocalHost, Machine

declare("watchdog.mid_stop")

TICK_S = 0.5  # heartbeats are read this often, so a step in `status` is at most this old
CLEAR_S = 0.02  # between two checks whether the killed child processes of a dead trainer are gone
RUN_FILES_S = 2.0  # between two checks of the run's directories, sockets and locks
REMAINS_S_MAX = 5.0  # how long the end of the run waits for killed processes to disappear
WAIT_S_MIN = 0.005  # the shortest wait, so that the loop does not spin on a deadline that is past but asks for no work
COMMANDS_S_MAX = 10.0  # how long the end of a run waits for the commands of --on-event


class Reactor:
    def __init__(self, core: Core, facts: Facts, environment: Environment) -> None:
        self._core, self._env = core, environment
        self._clock, self._processes = environment.clock, environment.processes
        self._sockets, self._remote, self._paths = environment.sockets, environment.remote, facts.start.paths
        self.local = self._make_local_host()
        self._hosts = Hosts(self.local, self._remote)
        self._quit: actions.Quit | None = None
        self._quit_s = 0.0
        self._tick_s = self._run_files_s = self._clock.monotonic()
        self._published = Publisher(core, facts, environment, self._hosts)
        # The Conversation exchanges messages with tasks, commands and services, and calls these functions of ours.
        loop = Loop(self.handle, self._look, self._hear_starts, self._imports_known, self._check_run_files)
        self._conversation = Conversation(core, environment, self._published, loop)
        reach = FaultReach(
            lambda task, body: self._hosts.of(task).send(task, body),
            self._published.journal,
            self._preempt,
            self._attempt,
            self._say,
        )
        self._injector = environment.make_injector(reach)

    def _make_local_host(self) -> LocalHost:
        env, settings = self._env, self._core.settings
        machine = Machine(env.clock, env.processes, env.standby, env.heartbeats, env.post_mortem, env.resources)
        tasks = tuple(task for task in settings.tasks if task not in settings.hosts)
        return LocalHost(machine, tasks, settings.launch, self._journal, env.console.say, self._send)

    # -- the loop ------------------------------------------------------------------------------------------
    def run(self) -> actions.Quit:
        """Loop until the run is over. Return the action that says how to exit."""
        self.start()
        while (quit := self.result) is None:
            self._wait()
            self.run_once()
        return quit

    def _wait(self) -> None:
        """Wait until something has happened or is due.

        Heartbeats from other machines arrive all the time, so they alone do not end the wait. After
        one has arrived, we pause briefly, so that several wake us only once.
        """
        left_s = self.pause_s()
        until_s = self._clock.monotonic() + left_s
        while (woken := self._sockets.wait_for_news(left_s)) and self._remote is not None:
            if not self._remote.finds_only_beats(woken):
                return
            if (left_s := until_s - self._clock.monotonic()) <= 0.0 or not self._remote.gather_beats(left_s):
                return
            left_s = max(0.0, until_s - self._clock.monotonic())

    def start(self) -> None:
        self._published.write_run()  # first, so that run.json exists when other processes learn of the start
        for task, adopted in self._core.settings.adopted.items():
            self._follow_log(task, adopted.incarnation)
        if self._core.settings.knows_imports:
            self.local.prepare_first()
            self._hear(self.local.answers())
        self._perform(self._core.start(self._clock.monotonic()))

    def run_once(self) -> None:
        """Run one turn of the loop: handle everything that has happened or is due."""
        self._renew_lease()  # before any write: while we were suspended, another machine may have taken the logdir
        if requests := self._env.signals.take_requests():
            self._look()  # before the signals: the heartbeats say which signals the program handles itself
        for asked in requests:
            self.handle(asked)
        self._hear(self.local.poll())
        self._conversation.handle_messages()
        if self._remote is not None:
            self._hear(self._remote.poll())
        self._check_deadlines()
        self._injector.inject_due_faults(self._clock.monotonic(), self._core.chief.step)

    @property
    def result(self) -> actions.Quit | None:
        """The action that says how to exit; None until the run is over and all is done."""
        return None if self._quit is None or self._has_remains() else self._quit

    def _has_remains(self) -> bool:
        """Whether the end of the run still waits for killed processes to disappear, or for commands
        of --on-event to end.
        """
        past_s = self._clock.monotonic() - self._quit_s
        return (self.local.is_clearing and past_s < REMAINS_S_MAX) or (
            self._env.event_hook.is_busy and past_s < COMMANDS_S_MAX
        )

    def pause_s(self) -> float:
        """Return how long to wait for the next turn if nothing happens first."""
        now_s = self._clock.monotonic()
        dues = [self._tick_s, self._next_due_s() or self._tick_s, self._injector.next_due_s(now_s) or self._tick_s]
        if self.local.is_clearing or self._quit is not None:
            dues.append(now_s + CLEAR_S)
        return max(WAIT_S_MIN, min(dues) - now_s)

    def handle(self, event: events.Event) -> None:
        self._perform(self._core.handle(event, self._clock.monotonic()))

    def _next_due_s(self) -> float | None:
        return first_due_s((self._core.next_due_s(), self.local.next_due_s()))

    def _check_deadlines(self) -> None:
        now_s = self._clock.monotonic()
        if now_s < self._tick_s and ((due_s := self._next_due_s()) is None or now_s < due_s):
            return
        self._tick_s = now_s + TICK_S
        self._env.event_hook.run_commands(now_s)
        for client in self._sockets.clients.values():
            self._conversation.greet(client)
        if self._remote is not None:
            self._remote.keep_in_touch(now_s)
        self._sockets.server.resend_due()
        # Each `procsv` command is a new peer, which ends after its answer. Forget those that have connected so far
        # (2**31 is above every incarnation), or the table of peers would grow with each command.
        self._sockets.server.forget(COMMAND_LINE, 2**31)
        self._processes.reap_strays()
        self._look()
        if self._env.console.is_live:
            self._env.console.show(self._published.run_file(), now_s)
        if now_s >= self._published.run_json_s:
            self._published.write_run()
            self._look_at_memory()
        self._published.send_metrics(now_s)
        if now_s >= self._run_files_s:
            self._run_files_s = now_s + RUN_FILES_S
            self._check_run_files()

    def _renew_lease(self) -> None:
        """Renew the lease of the logdir if that is due.

        If another launch has taken the logdir, stop writing.
        """
        if taker := self._env.held.keep(self._clock.monotonic()):
            self._env.records.stop_writing()
            self.handle(events.LogdirTaken(taker))

    def _look(self) -> None:
        """Read heartbeats and resources, and let the hosts and the core do what is due."""
        self._hear(self.local.tick(is_awaited=self._core.awaits_start(self._clock.monotonic())))
        self.handle(self._reading())

    def _reading(self) -> events.Ticked:
        """Return the current heartbeats and resources."""
        core, now_s, resources = self._core, self._clock.monotonic(), self._env.resources
        doing = {task: self._processes.doing(task) for task, service in core.services.items() if service.is_quiet}
        activity = {
            name: resources.tree_activity(task.pid) for name, task in self._own_tasks() if task.wants_activity(now_s)
        }
        memory_step = self._env.post_mortem.snapshot_step(core.chief.task)  # it reads a living task's slots, too
        awaits_room = any(task.next.awaits_room for task in core.tasks.values())
        has_room = self._env.run_files.has_room() if awaits_room else None
        stopped, traced = self._hosts.stopped(), self.local.traced()
        return events.Ticked(self._hosts.beats(), memory_step, stopped, traced, has_room, doing, activity)

    def _own_tasks(self) -> list[tuple[TaskId, TrainerSupervisor]]:
        """Return the tasks of this machine."""
        return [(name, task) for name, task in self._core.tasks.items() if name not in self._core.settings.hosts]

    def _look_at_memory(self) -> None:
        limit = self._core.settings.launch.memory_limit
        for name, task in self._own_tasks():
            is_limited = limit and task.life.state is TaskState.RUNNING
            used = self._env.resources.tree_memory(task.pid, limit) if is_limited else 0
            if why := over_limit(used, limit):
                self.handle(events.RecycleAsked(why, False, name))

    def _check_run_files(self) -> None:
        self.handle(events.RunFilesChecked(self._env.run_files.states()))
        if not self._core.run_files.is_settled:
            self._run_files_s = 0.0  # check again at the next tick: the lost file may be back

    def _restore(self, what: str, path: str) -> None:
        try:
            if what == SOCKET:
                self._sockets.restore_server()
            else:
                self._env.run_files.restore(what, path)
        except (OSError, UserError) as error:
            self.handle(events.NotRestored(path, getattr(error, "strerror", None) or str(error)))

    # -- processes -----------------------------------------------------------------------------------------
    def _hear(self, news: Iterable[events.Event]) -> None:
        """Hand the hosts' news to the core, and do what the loop itself must do about it."""
        for event in news:
            match event:
                case events.Started(task, incarnation):
                    self._follow_log(task, incarnation)
                case events.Ended(task, incarnation):
                    # A signal that killed a process may also have been sent to us. Handle it first. An observed program is
                    # not our child, so we get no exit status: the signal may be the only explanation of its death.
                    for asked in self._env.signals.take_requests():
                        self.handle(asked)
                    self._conversation.forget_dead(task, incarnation)
                    fault = self._injector.fault_behind(task, incarnation, event.exit)
                    event = msgspec.structs.replace(event, fault=fault)
            self.handle(event)

    def _hear_starts(self) -> None:
        self._hear(self.local.poll_starts())

    def _imports_known(self, task: TaskId, incarnation: int) -> None:
        self.local.imports_known(task, incarnation)
        self._hear(self.local.answers())

    def _send(self, task: TaskId, body: Message) -> None:
        self._conversation.tell_task(task, body)

    def _journal(self, entry: Entry, task: TaskId, incarnation: int) -> None:
        self._published.journal(entry, task, incarnation)

    def _follow_log(self, task: TaskId, incarnation: int) -> None:
        if task == self._core.chief.task:
            self._env.console.follow(self._paths.log(task, incarnation))

    # -- for the faults of a plan --------------------------------------------------------------------------
    def _attempt(self, task: TaskId) -> int:
        found = self._core.tasks.get(task)
        return found.incarnation if found is not None and found.pid else 0

    def _say(self, text: str) -> None:
        self._env.console.say(text, is_bad=True)

    def _preempt(self, grace_s: float, task: TaskId) -> None:
        self.handle(events.PreemptAsked(grace_s, "a planned fault", task))

    # -- the core's actions --------------------------------------------------------------------------------
    def _perform(self, todo: list[actions.Action]) -> None:
        """Carry out the actions in order.

        An action on this machine may have immediate results, such as Started. The core handles them,
        and we carry out its new actions, before the next action of `todo`. If RestoreFile fails, the
        core gets an event. If another action raises an exception, the rest of `todo` is lost, and
        the exception ends the loop.
        """
        for action in todo:
            match action:
                case actions.StartAttempt(task, incarnation, due_s):
                    self._hosts.of(task).start(task, incarnation, due_s)
                case actions.EndStarts():
                    self.local.end_starts()
                case actions.Signal(task, incarnation, number):
                    failpoint("watchdog.mid_stop")
                    self._hosts.of(task).signal(task, incarnation, number)
                case actions.KillTree(task, incarnation):
                    self._hosts.of(task).kill_tree(task, incarnation)
                case actions.ClearTree(task, incarnation, has_ended):
                    self._hosts.of(task).clear_tree(task, incarnation, has_ended)
                case actions.Tell(task, body):
                    self._hosts.of(task).send(task, body)
                case actions.WriteEntry(entry, task, incarnation):
                    self._published.journal(entry, task, incarnation)
                case actions.WriteRun():
                    self._published.write_run()
                case actions.Report() as report:
                    self._env.records.write_report(report, self._published.run_file())
                case actions.Say(text, is_bad, traceback):
                    self._env.console.say(text, is_bad, traceback)
                case actions.RestoreFile(what, path):
                    self._restore(what, path)
                case actions.Quit() as quit:
                    self._quit, self._quit_s = quit, self._clock.monotonic()
                case _:
                    assert_never(action)
            self._hear(self.local.answers())

    def close(self) -> RunFile:
        """Release everything but the lock of the logdir. Return the final content of run.json."""
        run = self._published.close()
        self._env.event_hook.close()
        self._sockets.close()
        self._env.heartbeats.close()
        return run
