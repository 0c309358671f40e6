"""Decide what the watchdog does: events and the time in, actions out.

event_loop.py calls the Core for everything that happens. The Core knows no process, socket, file or
clock, so a test can try thousands of crash schedules in a second. It hands each event to the part
that the event concerns: trainer.py for a task, services.py and service_events.py for the services,
and end/ for the end of the run. Three things remain here: what the start, end or loss of a process
means for the other tasks, what a signal means, and the order of the actions.

Each part returns a list of its own with the actions that it wants, in order. Only this module joins
the lists of different parts. event_loop.py carries the actions out in this order:

    1  what the event leads to. If a task is the first of its gang to end, the kills of the others
       come before the reports about its end, because the others are about to fail by themselves.
       At a tick: each task (heartbeat, room on the disk, hang), tasks that wait in vain for a
       session, the services' hangs, and the deadlines of the tasks
    2  tell the service that keeps the chief's state that the chief has died
    3  if the run ends: ask the next tasks, in order, to end (end/ending.py); prepare no more starts
    4  if the run ends and no task is left: ask the services to finish, or kill them; finally Quit
    5  start the services that are due; the event of 1 may have been the death of a service
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from signal import Signals

from procsv.base import exit_codes
from procsv.base.clock import first_due_s
from procsv.base.identity import TaskId
from procsv.base.journal import entries
from procsv.base.outcome import Exit
from procsv.base.signals import PASSED_ON, Default, default_of, is_handled
from procsv.ipc.messaging import watchdog_messages
from procsv.watchdog.core import actions, events
from procsv.watchdog.core.actions import Action
from procsv.watchdog.core.cluster import Roster, WaitsInVain, find_awaited, servers_of
from procsv.watchdog.core.end.closing import Closing
from procsv.watchdog.core.end.ending import Ending
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.restarts.restart_table import Follows
from procsv.watchdog.core.service_events import ServiceEvents
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.core.task.lifecycle import TaskState
from procsv.watchdog.core.task.trainer import TrainerSupervisor


class Core:
    def __init__(self, settings: Settings, first_incarnation: int, rng: Random, now_s: float) -> None:
        self._roster = roster = Roster(settings, first_incarnation, rng, now_s)
        self.settings = settings
        self.tasks, self.chief, self.gang = roster.tasks, roster.chief, roster.gang
        self.services = roster.services
        self._ending = Ending(roster)
        self._closing = Closing(roster, self._ending)
        self._service_events = ServiceEvents(roster, self._ending, self._closing)
        self.saves, self.run_files = self._service_events.saves, self._service_events.run_files
        self._servers, self._in_vain = servers_of(self.tasks), WaitsInVain()
        # Signals that the user was told of: procsv passes them on, or ignores them.
        self._signals_reported: set[int] = set()
        self._servers_lost = 0  # how often a parameter server was lost, with the variables that it held
        # The result of `next_due_s`, kept until the next event, because the loop asks twice per turn.
        self._due_s: float | None = None
        self._knows_due = False

    @property
    def is_ending(self) -> bool:
        return self._ending.has_begun

    @property
    def stop_source(self) -> str:
        """Who or what asked the run to end; "" if nobody has."""
        return self._ending.stop_source

    @property
    def failure(self) -> str:
        """Why the run cannot continue, if that is not a task's fault; otherwise ""."""
        return self._ending.failure

    @property
    def restarts_elsewhere(self) -> bool:
        """Whether the run ends only to restart at once on the remaining machines."""
        return self._ending.restarts_elsewhere

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the run has not ended."""
        return self._closing.exit_code

    @property
    def gave_up(self) -> str:
        """Why the run was given up; otherwise ""."""
        return self._closing.gave_up

    @property
    def generation(self) -> int:
        """The number of the generation of all tasks together.

        It rises when a gang restarts or a parameter server is lost: state must be restored then.
        """
        return self.gang.generation + self._servers_lost

    @property
    def state_label(self) -> str:
        """The run's state, as a word for people."""
        if self.exit_code is not None:
            return "stopped" if self._closing.is_stopped else {exit_codes.DONE: "done"}.get(self.exit_code, "failed")
        if self.is_ending and self.chief.life.state is not TaskState.UNKILLABLE:
            return "stopping"
        return self.chief.state_label

    def awaited_by(self, task: TaskId, now_s: float) -> TaskId | None:
        """Return the task that `task` waits for; None if no such wait is visible."""
        return find_awaited(self.tasks[task], self.tasks, self.chief.task, now_s, self._servers)

    def start(self, now_s: float) -> list[Action]:
        """Return the first actions: start the services, then the tasks."""
        self._knows_due = False
        services = self.services.values()
        first: list[Action] = [actions.StartAttempt(service.task, service.start(now_s)) for service in services]
        for name, task in self.tasks.items():
            adopted = self.settings.adopted.get(name)
            first += task.start(now_s) if adopted is None else task.adopt(adopted, now_s)
        return first

    def handle(self, event: events.Event, now_s: float) -> list[Action]:
        """Return the actions to carry out after `event`, in the order that the module describes."""
        self._knows_due = False
        return [*self._answer(event, now_s), *self._go_on(now_s)]

    def _answer(self, event: events.Event, now_s: float) -> list[Action]:
        """Return the actions that the event itself leads to: part 1 of the order."""
        match event:
            case events.Started():
                return self._started(event)
            case events.NotStarted(task=name) if name in self.tasks:
                return self.tasks[name].not_started(event, now_s)
            case events.NotStarted():
                return self._service_events.not_started(event, now_s)
            case events.Preparing():
                for name in event.tasks:
                    self.tasks[name].note_standby(event)
            case events.Ended(task=name) if name in self.tasks:
                return self._task_ended(self.tasks[name], event, now_s)
            case events.Ended():
                return self._service_events.ended(event, now_s)
            case events.TreeGone(name, incarnation):
                return self.tasks[name].tree_gone(incarnation, now_s)
            case events.Said(task=name) if name in self.tasks:
                return self._task_said(self.tasks[name], event, now_s)
            case events.Said():
                return self._service_events.said(event, now_s)
            case events.ServiceReady(name, incarnation):
                self.services[name].ready(incarnation)
            case events.Ticked():
                return self._ticked(event, now_s)
            case events.RunFilesChecked(states):
                return self._service_events.run_files_checked(states, now_s)
            case events.NotRestored(path, error):
                return self.run_files.not_restored(path, error)
            case events.StopAsked():
                return self._ending.stop_asked(event, now_s)
            case events.SignalCame(number):
                return self._signal_came(number, now_s)
            case events.Noted():
                journal = actions.WriteEntry(event.entry, event.task, event.incarnation)
                return [journal, actions.Say(event.text, event.is_bad), actions.WriteRun()]
            case events.Forwarded(name, body) if self.tasks[name].pid:
                return [actions.Tell(name, body)]
            case events.LogdirTaken(by):
                return self._ending.logdir_taken(by, now_s)
            case events.TaskLost():
                return self._task_lost(event, now_s)
            case events.RecycleAsked(why, by_hand, name):
                meant = self._restartable(name)
                return [wanted for task in meant for wanted in task.recycle(why, by_hand, now_s)]
            case events.PreemptAsked(grace_s, source, name):
                meant = self._restartable(name)
                return [wanted for task in meant for wanted in task.preempt(grace_s, source, now_s)]
        return []

    def next_due_s(self) -> float | None:
        """Return when the core next needs a Ticked, if no other event comes first.

        None: it has no deadline.
        """
        if not self._knows_due:
            dues = [*self._ending.next_due_s(), *(task.next_due_s() for task in self.tasks.values())]
            dues += [service.next_due_s() for service in self.services.values()]
            self._due_s, self._knows_due = first_due_s(dues), True
        return self._due_s

    def awaits_start(self, now_s: float) -> bool:
        """Whether the start of some task is due, but waits for the standby of its host."""
        return any(task.awaits_start(now_s) for task in self.tasks.values())

    def _restartable(self, name: TaskId | None) -> list[TrainerSupervisor]:
        """Return the tasks to ask when `name` is to restart (`Roster.restartable`).

        Return no task if the run is ending, or if procsv only observes the program.
        """
        return [] if self.is_ending or self.settings.observes else self._roster.restartable(name)

    # -- processes -----------------------------------------------------------------------------------------
    def _started(self, event: events.Started) -> list[Action]:
        told = [event.how] if event.how is not None else []
        told.append(entries.Spawned(pid=event.pid))
        if event.task in self.tasks:
            self.tasks[event.task].pid = event.pid
        else:
            self.services[event.task].pid = event.pid
            if event.incarnation > 1:
                told.append(entries.ServiceRestarted(pid=event.pid))
        return [actions.WriteEntry(entry, event.task, event.incarnation) for entry in told]

    def _task_ended(
        self, task: TrainerSupervisor, event: events.Ended, now_s: float, told: Sequence[Action] = ()
    ) -> list[Action]:
        """Handle the end of a task's attempt.

        `told`: actions of the caller that already report this end. They come first; only the kills
        of a broken gang come before them.
        """
        wanted = list(told)
        if event.incarnation != task.incarnation:
            return wanted
        has_served = task.is_serving
        wanted += task.died(event, now_s)
        if has_served and not self.is_ending:
            self._servers_lost += 1
            if self._roster.model is not None:
                self._roster.model.server_lost()
        is_done = task.life.state is TaskState.DONE and task is not self.chief
        if self.gang.breaks(task.task) and is_done and not self.is_ending:
            # The task was complete, but the other members of its gang restart, and cannot train without it.
            wanted += task.end_with_gang("another of its gang had ended first", now_s)
        if self.is_ending and not task.ends_run:
            # The attempt ended before the run asked it to. Do not restart the task.
            wanted += task.stop(False, "the run ends", now_s)
        end = task.record.end
        if self.is_ending or end is None or self._roster.what_follows(task, end) is not Follows.ALL_AGAIN:
            return wanted
        return [*self.gang.break_up(task.task, now_s), *wanted]

    def _task_lost(self, lost: events.TaskLost, now_s: float) -> list[Action]:
        """Treat the task as dead, although it may be alive: its machine may only be silent."""
        task = self.tasks.get(lost.task)
        number = task.incarnation if task is not None else 1
        wanted: list[Action] = [
            actions.WriteEntry(lost.entry, lost.task, number),
            actions.Say(lost.text, is_bad=True),
        ]
        if lost.host:
            wanted += self._ending.host_lost(lost, now_s)
        if task is None or not task.pid:
            return wanted
        if lost.host:
            wanted += task.stop(True, lost.why, now_s)  # first, so that it is not restarted
        ended = events.Ended(task.task, task.incarnation, Exit(None, None), lost=lost.why)
        return self._task_ended(task, ended, now_s, wanted)

    def _task_said(self, task: TrainerSupervisor, said: events.Said, now_s: float) -> list[Action]:
        wanted = task.said(said, now_s)
        if said.incarnation != task.incarnation or not task.pid:
            return wanted
        if isinstance(said.body, watchdog_messages.TrainsInStep):
            return [*wanted, *self._roster.trains_in_step()]
        if isinstance(said.body, watchdog_messages.FirstStepDone):
            return [*wanted, *self.gang.ready(task.task, said.body, now_s)]
        return wanted

    def _signal_came(self, number: int, now_s: float) -> list[Action]:
        """Pass a signal on to the programs on this machine that handle it.

        Launches on other machines do the same there. If no program here handles the signal, it has
        its default meaning: it stops the run, or a message says that it is ignored.
        """
        own = [task for name, task in self.tasks.items() if task.pid and name not in self.settings.hosts]
        handling = [] if self.settings.observes else [one for one in own if is_handled(one.progress.handles, number)]
        name, default = Signals(number).name, default_of(number)
        is_harmless = number in PASSED_ON and default is Default.GO_ON and not self.settings.observes
        # The program may have installed a handler since its last heartbeat. So send a harmless signal also to programs that
        # have shown no handler. That cannot kill such a program: procsv installed its own handler in the process before
        # the first heartbeat.
        sent = [one for one in own if is_harmless and one.progress.phase is not None] or handling
        wanted: list[Action] = [actions.Signal(task.task, task.incarnation, number) for task in sent]
        if not handling and default is not Default.GO_ON:
            # A closed terminal sends SIGHUP twice, from the shell and from the kernel, so a second one does not mean
            # that the user is in a hurry.
            now = default is Default.STOP_NOW and not self.settings.observes
            wanted += self._ending.stop_asked(events.StopAsked(name, now), now_s)
        elif number not in self._signals_reported:
            self._signals_reported.add(number)
            wanted.append(actions.Say(wording.signal_came(name, is_passed_on=bool(handling)), is_bad=not handling))
        return wanted

    # -- time ----------------------------------------------------------------------------------------------
    def _ticked(self, event: events.Ticked, now_s: float) -> list[Action]:
        wanted: list[Action] = []
        for name, service in self.services.items():
            if (beat := event.beats.get(name)) is not None:
                service.beat(beat)
        for name, task in self.tasks.items():
            if (beat := event.beats.get(name)) is not None:
                wanted += task.beat(beat, now_s)
            if event.has_room is not None:
                wanted += task.see_room(event.has_room, now_s)
            if task.pid:
                task.see_memory(event.memory_step)
                if name in event.traced or self.awaited_by(name, now_s) is not None:
                    task.hanging.liveness.skip_time(now_s)
                wanted += task.watch(beat, name in event.stopped, event.activity.get(name), now_s)
        if not self.is_ending:
            wanted += self._in_vain.find_in_vain(self.tasks, now_s)
        wanted += self._service_events.ticked(event, now_s)
        for task in self.tasks.values():
            wanted += task.check_deadlines(now_s)
        return wanted

    # -- the order of things -------------------------------------------------------------------------------
    def _go_on(self, now_s: float) -> list[Action]:
        """Return what the state of the run requires after any event: parts 2 to 5 of the order."""
        wanted = [*self._service_events.tell_death(), *self._ending.advance_end(now_s)]
        if not self._roster.running_on() and self.exit_code is None:
            wanted += self._closing.advance_closing(now_s)
        return [*wanted, *self._service_events.start_due(now_s)]
