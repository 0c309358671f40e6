"""Decide what the watchdog does: events and the time in, actions out.

Called by event_loop.py for everything that happens. It knows no process, socket, file or clock, so
that a test can try thousands of crash schedules in a second. It hands each event to the part that
it concerns: trainer.py for the trainer, services.py and service_events.py for the services, and
end/ for the end of the run. What is left here concerns processes and the order of things.
"""

from __future__ import annotations

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
from procsv.watchdog.core.cluster.roster import Roster, WaitsInVain, find_awaited, servers_of
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
        self.settings, self._out = settings, roster.out
        self.tasks, self.chief, self.gang = roster.tasks, roster.chief, roster.gang
        self.services = roster.services
        self._ending = Ending(roster)
        self._closing = Closing(roster, self._ending)
        self._of_services = ServiceEvents(roster, self._ending, self._closing)
        self.saves, self.run_files = self._of_services.saves, self._of_services.run_files
        self._servers, self._in_vain = servers_of(self.tasks), WaitsInVain()
        self._told: set[int] = set()  # signals that were reported as passed on or ignored
        self._servers_lost = 0  # each loss includes the variables that the server held
        # A cache of `next_due_s`, valid until the next event, because the loop asks twice per turn.
        self._due_s: float | None = None
        self._knows_due = False

    @property
    def is_ending(self) -> bool:
        return self._ending.has_begun

    @property
    def stop_source(self) -> str:
        """Who asked for the end; "" if it was not requested."""
        return self._ending.stop_source

    @property
    def failure(self) -> str:
        """Why the run cannot continue, if the cause is not the trainer; "" if it can."""
        return self._ending.failure

    @property
    def restarts_elsewhere(self) -> bool:
        """Whether the run ends to begin again at once on the remaining machines."""
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
        """A number for all tasks together that rises when state must be restored after the loss of
        a gang or a server.
        """
        return self.gang.generation + self._servers_lost

    @property
    def state_label(self) -> str:
        """The run's state as people read it."""
        if self.exit_code is not None:
            return "stopped" if self._closing.is_stopped else {exit_codes.DONE: "done"}.get(self.exit_code, "failed")
        if self.is_ending and self.chief.life.state is not TaskState.UNKILLABLE:
            return "stopping"
        return self.chief.state_label

    def awaited_by(self, task: TaskId, now_s: float) -> TaskId | None:
        """Return the task that `task` waits for; None if it visibly waits for none."""
        return find_awaited(self.tasks[task], self.tasks, self.chief.task, now_s, self._servers)

    def start(self, now_s: float) -> list[actions.Action]:
        """Return the first actions: start the services, then the tasks."""
        self._knows_due = False
        for service in self.services.values():
            self._out.append(actions.StartAttempt(service.task, service.start(now_s)))
        for name, task in self.tasks.items():
            if (adopted := self.settings.adopted.get(name)) is not None:
                self._out += task.adopt(adopted, now_s)
            else:
                self._out += task.start(now_s)
        return self._roster.take_actions()

    def handle(self, event: events.Event, now_s: float) -> list[actions.Action]:
        self._knows_due = False
        match event:
            case events.Started():
                self._started(event)
            case events.NotStarted():
                self._not_started(event, now_s)
            case events.Preparing():
                for name in event.tasks:
                    self.tasks[name].prepares(event)
            case events.Ended(task=name) if name in self.tasks:
                self._task_ended(self.tasks[name], event, now_s)
            case events.Ended():
                self._of_services.ended(event, now_s)
            case events.TreeGone(name, incarnation):
                self._out += self.tasks[name].tree_gone(incarnation, now_s)
            case events.Said(task=name) if name in self.tasks:
                self._task_said(self.tasks[name], event, now_s)
            case events.Said():
                self._of_services.said(event, now_s)
            case events.ServiceReady(name, incarnation):
                self.services[name].ready(incarnation)
            case events.Ticked():
                self._ticked(event, now_s)
            case events.RunFilesChecked(states):
                self._of_services.run_files_checked(states, now_s)
            case events.NotRestored(path, error):
                self._out += self.run_files.not_restored(path, error)
            case events.StopAsked():
                self._ending.stop_asked(event, now_s)
            case events.SignalCame(number):
                self._signal_came(number, now_s)
            case events.LogdirAdopted(name, incarnation, logdir, shown, saved_step):
                journal = actions.WriteEntry(entries.LogdirAdopted(logdir=logdir), name, incarnation)
                self._out += [journal, actions.Say(wording.adopted(shown, saved_step)), actions.WriteRun()]
            case events.LogdirTaken(by):
                self._ending.logdir_taken(by, now_s)
            case events.MemberLost():
                self._member_lost(event, now_s)
            case events.MemberReplaced():
                self._member_replaced(event, now_s)
            case events.SpareLost(name, host, silent_s):
                journal = actions.WriteEntry(entries.SpareLost(host=host, silent=round(silent_s, 3)), name, 1)
                text = wording.spare_lost(host, silent_s)
                self._out += [journal, actions.Say(text, is_bad=True), actions.WriteRun()]
            case events.CopyKept(sequence):
                if self.chief.pid:
                    self._out.append(actions.Tell(self.chief.task, watchdog_messages.CopyKept(sequence)))
            case events.RecycleAsked(why, by_hand, name):
                for task in self._restartable(name):
                    self._out += task.recycle(why, by_hand, now_s)
            case events.PreemptAsked(grace_s, source, name):
                for task in self._restartable(name):
                    self._out += task.preempt(grace_s, source, now_s)
        self._go_on(now_s)
        return self._roster.take_actions()

    def next_due_s(self) -> float | None:
        """Return when a Ticked will have something to do, whatever else happens."""
        if not self._knows_due:
            dues = [*self._ending.next_due_s(), *(task.next_due_s() for task in self.tasks.values())]
            dues += [service.next_due_s() for service in self.services.values()]
            self._due_s, self._knows_due = first_due_s(dues), True
        return self._due_s

    def awaits_start(self, now_s: float) -> bool:
        """Whether the start of a task is due, and waits for something that its host prepares."""
        return any(task.awaits_start(now_s) for task in self.tasks.values())

    def _restartable(self, name: TaskId | None) -> list[TrainerSupervisor]:
        """Return the tasks that are meant and may be restarted."""
        return [] if self.is_ending or self.settings.observes else self._roster.restartable(name)

    # -- processes -----------------------------------------------------------------------------------------
    def _started(self, event: events.Started) -> None:
        told = [entry for entry in (event.how, entries.Spawned(pid=event.pid)) if entry is not None]
        self._out += [actions.WriteEntry(entry, event.task, event.incarnation) for entry in told]
        if event.task in self.tasks:
            self.tasks[event.task].pid = event.pid
            return
        self.services[event.task].pid = event.pid
        if event.incarnation > 1:
            restarted = entries.ServiceRestarted(pid=event.pid)
            self._out.append(actions.WriteEntry(restarted, event.task, event.incarnation))

    def _not_started(self, event: events.NotStarted, now_s: float) -> None:
        if event.task in self.tasks:
            self._out += self.tasks[event.task].not_started(event, now_s)
        else:
            self._of_services.not_started(event, now_s)

    def _task_ended(self, task: TrainerSupervisor, event: events.Ended, now_s: float) -> None:
        if event.incarnation != task.incarnation:
            return
        has_served = task.is_serving
        self._out += task.died(event, now_s)
        if has_served and not self.is_ending:
            self._servers_lost += 1
            if self._roster.model is not None:
                self._roster.model.server_lost()
        is_done = task.life.state is TaskState.DONE and task is not self.chief
        if self.gang.breaks(task.task) and is_done and not self.is_ending:
            self._out += task.leave_gang("another of its gang had ended first", now_s)  # the others need it again
        if self.is_ending and not task.ends_run:  # its turn to be asked had not come, but nothing is restarted
            self._out += task.stop(False, "the run ends", now_s)
        if (
            self.is_ending
            or (end := task.record.end) is None
            or self._roster.what_follows(task, end) is not Follows.ALL_AGAIN
        ):
            return
        told = self._roster.take_actions()
        self.gang.break_up(task.task, now_s)
        self._out += told  # after the kills: the others are about to end by errors of their own

    def _member_lost(self, lost: events.MemberLost, now_s: float) -> None:
        """The task of a lost machine may still be alive, but no longer counts."""
        task = self.tasks[lost.task]
        why = self._ending.member_lost(task, lost, now_s)
        if task.pid:
            self._out += task.stop(True, why, now_s)  # first, so that it is not restarted
            self._task_ended(task, events.Ended(task.task, task.incarnation, Exit(None, None), lost=why), now_s)

    def _member_replaced(self, news: events.MemberReplaced, now_s: float) -> None:
        """The task has ended with its launch; the next launch restarts it as after any death."""
        task = self.tasks.get(news.task)  # None: a spare launch without a task
        number = task.incarnation if task is not None else 1
        replaced = entries.MemberReplaced(host=news.host, before=news.before, pid=news.pid)
        self._out.append(actions.WriteEntry(replaced, news.task, number))
        self._out.append(actions.Say(wording.member_replaced(news), is_bad=True))
        if task is not None and task.pid:
            why = f"its launch on {news.host} (process {news.before}) was killed"
            self._task_ended(task, events.Ended(task.task, task.incarnation, Exit(None, None), lost=why), now_s)

    def _task_said(self, task: TrainerSupervisor, said: events.Said, now_s: float) -> None:
        self._out += task.said(said, now_s)
        if said.incarnation != task.incarnation or not task.pid:
            return
        if isinstance(said.body, watchdog_messages.TrainsInStep):
            self._roster.trains_in_step()
        elif isinstance(said.body, watchdog_messages.FirstStepDone):
            self.gang.ready(task.task, said.body, now_s)

    def _signal_came(self, number: int, now_s: float) -> None:
        """Pass a signal on to this machine's programs that handle it; other launches do the same on
        their machines.
        """
        own = [task for name, task in self.tasks.items() if task.pid and name not in self.settings.hosts]
        handling = [] if self.settings.observes else [one for one in own if is_handled(one.progress.handles, number)]
        name, default = Signals(number).name, default_of(number)
        is_harmless = number in PASSED_ON and default is Default.GO_ON and not self.settings.observes
        # A handler may be newer than the heartbeat. A program without one survives a harmless signal once it has
        # written a heartbeat, so it is sent there too.
        sent = [one for one in own if is_harmless and one.progress.phase is not None] or handling
        self._out += [actions.Signal(task.task, task.incarnation, number) for task in sent]
        if not handling and default is not Default.GO_ON:
            now = (default is Default.STOP_NOW or bool(self.stop_source)) and not self.settings.observes
            self._ending.stop_asked(events.StopAsked(name, now), now_s)
        elif number not in self._told:
            self._told.add(number)
            self._out.append(actions.Say(wording.signal_came(name, is_passed_on=bool(handling)), is_bad=not handling))

    # -- time ----------------------------------------------------------------------------------------------
    def _ticked(self, event: events.Ticked, now_s: float) -> None:
        for name, service in self.services.items():
            if (beat := event.beats.get(name)) is not None:
                service.beat(beat)
        for name, task in self.tasks.items():
            if (beat := event.beats.get(name)) is not None:
                self._out += task.beat(beat, now_s)
            if event.has_room is not None:
                self._out += task.see_room(event.has_room, now_s)
            if task.pid:
                task.see_memory(event.memory_step)
                if self.awaited_by(name, now_s) is not None:
                    task.hanging.liveness.stand_by(now_s)
                self._out += task.watch(beat, name in event.stopped, event.activity.get(name), now_s)
        if not self.is_ending:
            self._out += self._in_vain.find_in_vain(self.tasks, now_s)
        self._of_services.ticked(event, now_s)
        for task in self.tasks.values():
            self._out += task.check_deadlines(now_s)

    # -- the order of things -------------------------------------------------------------------------------
    def _go_on(self, now_s: float) -> None:
        """Do what the overall state requires, whatever led to it."""
        self._of_services.tell_death()
        self._ending.advance_end(now_s)
        if not self._roster.running_on() and self.exit_code is None:
            self._closing.advance_closing(now_s)
        self._of_services.start_due(now_s)
