"""The watchdog's decisions: events and the time in, actions out.

Called by event_loop.py for everything that happens.  Knows no process, socket, file or clock, so that thousands of crash
schedules can be tried in a second.  The trainer's part is in trainer.py, a service's in service.py; here is what concerns
the run: starting in order, hearing the services' news, and ending in order:

    stop asked, training done, or given up
      -> the trainer ends                                    (its share of the grace, then it is killed)
      -> TrainerExited to the checkpoint service, FlushDone     (what the trainer had is on disk)
      -> Finish to both services, which exit
      -> Quit
"""

from __future__ import annotations

import signal
from random import Random

from procsv.base import exit_codes
from procsv.base.cluster import PS
from procsv.base.errors import ProcsvBug
from procsv.base.grace import SERVICES_SHARE, TRAINER_SHARE
from procsv.base.identity import STANDBY, TaskId
from procsv.base.outcome import NO_STEP, Exit
from procsv.base.units import show_duration
from procsv.ipc.messaging import messages
from procsv.watchdog.core import actions, events, wording
from procsv.watchdog.core.end_order import EndOrder, Request
from procsv.watchdog.core.gang import Gang
from procsv.watchdog.core.ground import Ground
from procsv.watchdog.core.lifecycle import State
from procsv.watchdog.core.restart_table import TABLE, End, Follows, duty_of
from procsv.watchdog.core.save_status import Saves
from procsv.watchdog.core.service import ServiceState, ServiceSupervisor
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.core.standby import Standby
from procsv.watchdog.core.trainer import TREE_S_MAX, TrainerSupervisor
from procsv.watchdog.core.waiting import find_awaited

BEFORE_ITS_STATE = (State.PENDING, State.IMPORTING, State.CONNECTED, State.RESTORING)


class Core:
    def __init__(self, settings: Settings, first_incarnation: int, rng: Random, now_s: float) -> None:
        self.settings = settings
        self.started_s = now_s
        self._out: list[actions.Action] = []
        self.standby = Standby(settings.launch.standby, self._out)
        self.tasks = {
            task: TrainerSupervisor(task, first_incarnation, settings, rng, now_s, self._standby_of(task), self._out)
            for task in settings.tasks
        }
        self.chief = self.tasks[settings.tasks[0]]  # its state is the one that is saved; its end ends the run
        self.services = {task: ServiceSupervisor(spec, settings, self._out) for task, spec in settings.services.items()}
        self._keeper = next((service for service in self.services.values() if service.spec.keeps_state), None)
        self.stop_source = ""  # who asked for the end; set before anything is done about it
        self.failure = ""  # why the run cannot go on, where it is not the trainer's own doing
        self.is_taken = False  # the logdir, by another machine
        self.moves = False  # it ends to begin again at once, on the machines that are left
        self.exit_code: int | None = None
        self.settled_step = NO_STEP
        self._stop_s = 0.0
        self._end_s: float | None = None  # deadline of the services, once the run is ending
        self._told_ended = 0  # the chief's incarnation whose death the service that keeps its state was told of
        self._servers_lost = 0  # with the variables that they held
        self._others_are_stopped = False  # the chief's end, or a task that is given up, has ended the other tasks
        self.gang = Gang(self.tasks, self.chief.task, settings.launch.restart, self._out, now_s)
        self._end_order = EndOrder(self.chief.task)
        self.saves = Saves()
        self.ground = Ground()

    def _standby_of(self, task: TaskId) -> Standby:
        """What starts are made from; a task of another machine starts cold, as far as is known here."""
        return Standby("off", self._out) if task in self.settings.hosts else self.standby

    @property
    def is_ending(self) -> bool:
        return self._end_s is not None or bool(self.stop_source) or self._others_are_stopped

    @property
    def generation(self) -> int:
        """Of the tasks together: a number that rises when state has to be restored, as a gang or a server was lost."""
        return self.gang.generation + self._servers_lost

    @property
    def word(self) -> str:
        """The run's state as people read it."""
        if self.exit_code is not None:
            return {exit_codes.DONE: "done", exit_codes.RESUMABLE: "stopped"}.get(self.exit_code, "failed")
        if self.is_ending and self.chief.life.state is not State.UNKILLABLE:
            return "stopping"
        return self.chief.state_word

    def start(self, now_s: float) -> list[actions.Action]:
        """The first actions: the services, then the tasks."""
        for service in self.services.values():
            self._out.append(actions.Spawn(service.task, service.start(now_s)))
        if self.settings.knows_imports:
            self.standby.comes_first()
        for name, task in self.tasks.items():
            if (adopted := self.settings.adopted.get(name)) is not None:
                task.adopt(adopted, now_s)
            else:
                task.start(now_s)
        return self._take_actions()

    def handle(self, event: events.Event, now_s: float) -> list[actions.Action]:
        match event:
            case events.Spawned():
                self._spawned(event)
            case events.NotSpawned():
                self._not_spawned(event, now_s)
            case events.Ended(task=name) if name in self.tasks:
                self._task_ended(self.tasks[name], event, now_s)
            case events.Ended(task=name) if name == STANDBY:
                self.standby.died(event, now_s)
            case events.Ended():
                self._service_ended(event, now_s)
            case events.TreeGone(name, incarnation):
                self.tasks[name].tree_gone(incarnation, now_s)
            case events.Said(task=name) if name in self.tasks:
                self._task_said(self.tasks[name], event, now_s)
            case events.Said():
                self._service_said(event, now_s)
            case events.ServiceReady(name, incarnation):
                self.services[name].ready(incarnation)
            case events.Ticked():
                self._ticked(event, now_s)
            case events.GroundSeen(sights):
                self._ground_seen(sights, now_s)
            case events.NotRestored(path, error):
                self._out += self.ground.not_restored(path, error)
            case events.StandbySaid():
                self.standby.said(event, now_s)
            case events.Promoted():
                self._promoted(event, now_s)
            case events.NotPromoted():
                self.standby.not_promoted(event, now_s)
                self.tasks[event.task].not_promoted(now_s)
            case events.StopAsked():
                self._stop_asked(event, now_s)
            case events.LogdirAdopted(name, incarnation, logdir, shown, saved_step):
                journal = actions.Journal("logdir_adopted", name, incarnation, {"logdir": logdir})
                self._out += [journal, actions.Say(wording.adopted(shown, saved_step)), actions.WriteRun()]
            case events.LogdirTaken(by):
                self._logdir_taken(by, now_s)
            case events.MemberLost():
                self._member_lost(self.tasks[event.task], event, now_s)
            case events.SpareLost(name, host, silent_s):
                journal = actions.Journal("spare_lost", name, 1, {"host": host, "silent": round(silent_s, 3)})
                text = wording.spare_lost(host, silent_s)
                self._out += [journal, actions.Say(text, is_bad=True), actions.WriteRun()]
            case events.RecycleAsked(why, by_hand, name):
                for task in self._restartable(name):
                    task.recycle(why, by_hand, now_s)
            case events.PreemptAsked(grace_s, source, name):
                for task in self._restartable(name):
                    task.preempt(grace_s, source, now_s)
        self._go_on(now_s)
        return self._take_actions()

    def next_due_s(self) -> float | None:
        """When a Ticked will have something to do, whatever else happens."""
        dues = [
            self.standby.next_due_s(),
            self._end_s,
            self._end_order.next_due_s([task.task for task in self._running_on()]),
            *(task.next_due_s() for task in self.tasks.values()),
            *(service.next_due_s() for service in self.services.values()),
        ]
        return min((due for due in dues if due is not None), default=None)

    def _take_actions(self) -> list[actions.Action]:
        taken = list(self._out)
        self._out.clear()
        return taken

    def _restartable(self, name: TaskId | None) -> list[TrainerSupervisor]:
        """The tasks that are meant and may be ended to be started again; None: all but servers, which hold the others' state."""
        if self.is_ending or self.settings.observes:
            return []
        meant = [task for task in self._running_on() if name in (None, task.task)]
        return self.gang.stand_for([t for t in meant if name is not None or t is self.chief or t.task.role != PS])

    def _running_on(self) -> list[TrainerSupervisor]:
        return [task for task in self.tasks.values() if not task.ends_run]

    # -- processes -----------------------------------------------------------------------------------------
    def _spawned(self, event: events.Spawned) -> None:
        self._out.append(actions.Journal("spawned", event.task, event.incarnation, {"pid": event.pid}))
        if event.task in self.tasks:
            self.tasks[event.task].pid = event.pid
            return
        if event.task == STANDBY:
            self.standby.pid = event.pid
            return
        self.services[event.task].pid = event.pid
        if event.incarnation > 1:
            self._out.append(actions.Journal("service_restarted", event.task, event.incarnation, {"pid": event.pid}))

    def _not_spawned(self, event: events.NotSpawned, now_s: float) -> None:
        if event.task in self.tasks:
            self.tasks[event.task].not_spawned(event.error, now_s)
        elif event.task == STANDBY:
            self.standby.not_spawned(event, now_s)
        else:
            text = f"cannot start the {event.task} service: {event.error}; trying again"
            self._out.append(actions.Say(text, is_bad=True))
            self.services[event.task].not_spawned(now_s)

    def _promoted(self, event: events.Promoted, now_s: float) -> None:
        self.standby.promoted(event, now_s)
        fields = {"pid": event.pid, "standby": event.number}
        self._out.append(actions.Journal("promoted", event.task, event.incarnation, fields))
        self._spawned(events.Spawned(event.task, event.incarnation, event.pid))

    def _task_ended(self, task: TrainerSupervisor, event: events.Ended, now_s: float) -> None:
        """A standby that had not answered yet was no trainer, unless somebody had asked the trainer to end."""
        if self.standby.is_becoming(event.task, event.incarnation):
            if task.life.state is State.PENDING:
                self.standby.died(event, now_s)
                task.not_promoted(now_s)
                return
            self._promoted(events.Promoted(self.standby.number, event.task, event.incarnation, self.standby.pid), now_s)
        if event.incarnation != task.incarnation:
            return
        has_served = task.is_serving
        task.died(event, now_s)
        if has_served and not self.is_ending:
            self._servers_lost += 1
        if (
            self.gang.breaks(task.task)
            and task.life.state is State.DONE
            and task is not self.chief
            and not self.is_ending
        ):
            task.leave_gang(self.chief.task, "another of its gang had ended first", now_s)  # the others need it again
        if self.is_ending and not task.ends_run:  # its turn to be asked had not come: nothing is started again
            task.stop(False, "the run ends", now_s)
        if not self.is_ending and task.end is not None and self._what_follows(task, task.end) is Follows.ALL_AGAIN:
            told = self._take_actions()
            self.gang.break_up(task.task, now_s)
            self._out += told  # after the kills: the others are about to end by errors of their own

    def _what_follows(self, task: TrainerSupervisor, end: End) -> Follows:
        """From the end of a task; one that is given up has no other."""
        return TABLE[duty_of(task.task, self.chief.task), self.gang.policy, End.GAVE_UP if task.gave_up else end]

    def _task_said(self, task: TrainerSupervisor, said: events.Said, now_s: float) -> None:
        task.said(said, now_s)
        if said.incarnation != task.incarnation or not task.pid:
            return
        if isinstance(said.body, messages.TrainsInStep):
            self.gang.bound()
        elif isinstance(said.body, messages.FirstStepDone):
            self.gang.ready(task.task, said.body, now_s)

    def _service_ended(self, event: events.Ended, now_s: float) -> None:
        service = self.services[event.task]
        if event.incarnation != service.incarnation:
            return
        if event.beat is not None:
            service.beat(event.beat)
        if service is self._keeper:
            self._told_ended = 0
        fields = service.exited_fields(event, service.cause(event))
        service.ended(event.exit, self._is_needed(service, now_s), now_s)
        self._out.append(actions.Journal("exited", event.task, event.incarnation, fields))
        if service.state is ServiceState.LOST:
            why = f"{service.why_lost}; what it said: {event.log}"
            self._out += [actions.Tell(task, messages.ServiceLost(service.task, why)) for task in self.tasks]
            self._service_lost(service, why, now_s, event.last_lines)
        elif service.restart_s is not None:
            how = f"{event.exit}, by the fault plan" if event.fault else str(event.exit)
            text = f"the {service.task} service ended ({how}); starting it again, training goes on"
            self._out.append(actions.Say(text, is_bad=True))

    def _is_needed(self, service: ServiceSupervisor, now_s: float) -> bool:
        """Whether a service that has just died is started again."""
        if service.is_over:
            return False
        if self._end_s is None:
            return True
        return now_s < self._end_s and not self._has_nothing_to_do(service)

    # -- news of the services ------------------------------------------------------------------------------
    def _service_said(self, said: events.Said, now_s: float) -> None:
        service = self.services[said.task]
        if said.incarnation != service.incarnation:
            return
        match said.body:
            case messages.Durable() as news:
                self._durable(news, service)
            case messages.SaveFailed() as news:
                self._out += self.saves.failed(news, service.incarnation, now_s)
            case messages.Unwritable() as news:
                self._out += self.saves.unwritable(news, service.incarnation, self.chief.step)
            case messages.Rejected(path, why):
                fields = {"path": path, "why": why}
                self._out.append(actions.Journal("checkpoint_rejected", service.task, service.incarnation, fields))
                self._out.append(actions.Say(f"{path} is invalid, skipping: {why}", is_bad=True))
            case messages.FlushDone() as news:
                self.settled_step = max(self.settled_step, news.step)
                self._settled(news, said.answers, now_s)
            case messages.Ack():
                pass
            case body:
                raise ProcsvBug(f"{type(body).__name__} has no handler")

    def _durable(self, news: messages.Durable, service: ServiceSupervisor) -> None:
        if self.saves.is_news(news):
            service.history.worked()
            self._out += self.saves.durable(news, service.incarnation)
            for task in self.tasks.values():
                task.durable(news)

    def _settled(
        self, news: messages.FlushDone, answers: messages.TrainerExited | messages.Finish | None, now_s: float
    ) -> None:
        if isinstance(answers, messages.TrainerExited):
            self.chief.settled(news, answers, now_s)
            self.gang.settled(now_s)
        elif news.error and not self.chief.unsaved:
            self.chief.unsaved = news.error

    # -- time ----------------------------------------------------------------------------------------------
    def awaited_by(self, task: TaskId, now_s: float) -> TaskId | None:
        """The task that `task` waits for; None if it waits for nobody, as far as can be seen."""
        return find_awaited(self.tasks[task], self.tasks, self.chief.task, now_s)

    def _ticked(self, event: events.Ticked, now_s: float) -> None:
        for name, service in self.services.items():
            if (beat := event.beats.get(name)) is not None:
                service.beat(beat)
        for name, task in self.tasks.items():
            if (beat := event.beats.get(name)) is not None:
                task.beat(beat, now_s)
            if task.pid:
                task.see_memory(event.memory_step)
                if self.awaited_by(name, now_s) is not None:
                    task.hanging.liveness.stand_by(now_s)
                task.watch(beat, name in event.stopped, event.activity.get(name), now_s)
        for name, service in self.services.items():
            service.watch(event.beats.get(name), event.doing.get(name, ""), now_s)
        self.standby.check_deadlines(now_s, event.room_bytes)  # first: a task that is due waits for one that is made
        for task in self.tasks.values():
            task.check_deadlines(now_s)

    def _ground_seen(self, sights: tuple[events.Sight, ...], now_s: float) -> None:
        """What a service makes is looked at while it serves: it is made when that begins, and removed when it ends."""
        for service in self.services.values():
            if service.state is not ServiceState.SERVING:
                self.ground.forget(service.task, sights)
                sights = tuple(sight for sight in sights if sight.owner != service.task)
        self._out += self.ground.look(sights, now_s)

    def _stop_asked(self, event: events.StopAsked, now_s: float, killed: frozenset[TaskId] = frozenset()) -> None:
        """`killed`: those that are not asked first."""
        again = bool(self.stop_source)
        self.moves = bool(event.spare) and (self.moves or not again)
        self.stop_source = self.stop_source or event.source
        if not again:
            self._stop_s = now_s
            self._out.append(actions.WriteRun())  # before any signal: nothing is started again from here on
            self._wake_services()
            if event.is_notice:
                fields = {"grace": self.settings.launch.grace_s, "source": event.source}
                self._out.append(actions.Journal("preempt_notice", self.chief.task, self.chief.incarnation, fields))
        if self._running_on() and (event.now or not again):
            is_before = all(task.is_before_session for task in self._running_on())
            text = wording.stopping(event.source, event.now, is_before, self.settings.launch.grace_s, event.spare)
            self._out.append(actions.Say(text))
        if self._end_s is not None:  # it is over already; the services get no longer than a stop would give them
            self._end_s = min(self._end_s, self._services_end_s(now_s))
        elif event.now or not again:
            why = f"{event.source} asked for an end at once" if event.now else event.source
            at_once = frozenset(self.tasks) if event.now else killed
            self._end_order.begin(Request(why, "preempt" if event.is_notice else "final", at_once), now_s)

    def _service_lost(self, service: ServiceSupervisor, why: str, now_s: float, last_lines: tuple[str, ...]) -> None:
        """Without a critical service the run cannot go on: the program is asked to stop, then everything ends.

        A task that has not got its state yet will never get it from a lost service; it is not waited for.
        """
        said = "\n".join(f"  {line}" for line in last_lines)
        if self.settings.observes or not service.spec.is_critical:
            self._out.append(
                actions.Say(f"{why}; it is not started again, the program goes on", is_bad=True, traceback=said)
            )
            return
        self.failure = self.failure or why
        self._out.append(actions.Say(f"giving up: {why}", is_bad=True, traceback=said))
        if not self.is_ending:
            self.stop_source, self._stop_s = "a lost service", now_s
            self._out.append(actions.WriteRun())
            stateless = {name for name, task in self.tasks.items() if task.life.state in BEFORE_ITS_STATE}
            self._end_order.begin(Request(why, at_once=frozenset(stateless if service is self._keeper else ())), now_s)

    def _member_lost(self, task: TrainerSupervisor, lost: events.MemberLost, now_s: float) -> None:
        """Its task may live on, but counts no more: the run ends with what is saved.

        It begins again where a spare machine has its place, and else when its scheduler starts it.
        """
        fields = {"host": lost.host, "silent": round(lost.silent_s, 3), "spare": lost.spare}
        self._out.append(actions.Journal("member_lost", task.task, task.incarnation, fields))
        why = f"nothing is heard of {lost.host} for {show_duration(lost.silent_s)}"
        follows = f"all begin again, with {lost.spare} in its place" if lost.spare else "the run stops"
        self._out.append(actions.Say(f"{why}, where {task.task} runs: {follows}", is_bad=True))
        if not self.is_ending:
            at_once = self._need_no_time(task.task) if lost.spare else frozenset[TaskId]()
            asked = events.StopAsked(f"the loss of {lost.host}", now=False, spare=lost.spare)
            self._stop_asked(asked, now_s, at_once)
        if task.pid:
            task.stop(True, why, now_s)  # first: nothing of it is started again
            self._task_ended(task, events.Ended(task.task, task.incarnation, Exit(None, None), lost=why), now_s)

    def _need_no_time(self, lost: TaskId) -> frozenset[TaskId]:
        """Those that have nothing to save where all begin again: all, if the chief can end no step without `lost`."""
        is_stuck = lost.role == PS or lost in self.gang.members
        return frozenset(task for task in self.tasks if is_stuck or not (task == self.chief.task or task.role == PS))

    def _logdir_taken(self, by: str, now_s: float) -> None:
        """Nothing more is written there: the program is ended as it is, and what it had in memory is of no use."""
        if self.is_taken:
            return
        self.is_taken = True
        self.failure = f"{by} has taken the logdir, where this run writes no more; what is not on disk is lost"
        self._out.append(actions.Say(f"giving up: {self.failure}", is_bad=True))
        if not self.stop_source:
            self.stop_source, self._stop_s = "a logdir that was taken", now_s
        at_once = frozenset[TaskId]() if self.settings.observes else frozenset(self.tasks)
        self._end_order.begin(Request(self.failure, at_once=at_once), now_s)

    # -- the order of things -------------------------------------------------------------------------------
    def _go_on(self, now_s: float) -> None:
        """What the state of everything calls for, whatever led to it."""
        ended = self.chief.unsettled
        if self._keeper is None:
            self.chief.unsettled = None
        elif ended is not None and self._keeper.is_up and self._told_ended != ended.incarnation:
            self._told_ended = ended.incarnation
            self._out.append(actions.Tell(self._keeper.task, ended))
        if self.gang.failure and not self.is_ending:
            self.failure, self._others_are_stopped = self.gang.failure, True
            self._end_order.begin(Request(self.failure, at_once=self.gang.members), now_s)
        is_over = self.chief.ends_run or bool(self._given_up())
        if not is_over and not self.is_ending:
            self.gang.regroup(now_s)
        if is_over and self._running_on() and not self.is_ending:
            self._others_are_stopped = True
            broken = self.gang.members if self._given_up() else frozenset[TaskId]()  # they can end no step any more
            self._end_order.begin(Request("the run ends", at_once=broken), now_s)
        self._end_tasks(now_s)
        running_on = self._running_on()
        if self.is_ending or is_over:
            self.standby.unwanted(now_s, "the run ends")
        if not running_on and self.exit_code is None:
            self._end_run(now_s)
        for service in self.services.values():
            if service.is_due(now_s):
                self._out.append(actions.Spawn(service.task, service.start(now_s)))

    def _given_up(self) -> list[TrainerSupervisor]:
        """Those whose end is that of the run."""
        given_up = [task for task in self.tasks.values() if task.gave_up]
        return [task for task in given_up if self._what_follows(task, End.GAVE_UP) is Follows.RUN_ENDS]

    def _end_tasks(self, now_s: float) -> None:
        """Asks those to end whose turn it is, until there is none: one that does not live has ended with that."""
        while (order := self._end_order).request is not None:
            # Without the chief they cannot end a step; what it has ended by itself, they may be ending, too.
            lost = frozenset[TaskId]() if self.chief.life.state is State.DONE else self.gang.followers
            due = order.take_due([task.task for task in self._running_on()], now_s, self.gang.followers)
            for task in due:
                at_once = task in order.request.at_once or task in lost
                self.tasks[task].stop(at_once, order.request.why, now_s, order.request.reason)
            if not due:
                return

    def _end_run(self, now_s: float) -> None:
        """One more step of the end of the run."""
        if self._end_s is None:
            self._end_s = self._services_end_s(now_s) if self.stop_source else now_s + self._finish_s_max
            self._out.append(actions.WriteRun())
            self._wake_services()
        is_late = now_s >= self._end_s
        for service in self.services.values():
            if service.is_over:
                continue
            if is_late or self._has_nothing_to_do(service):
                if service.pid:
                    self._out.append(actions.KillTree(service.task, service.incarnation))
                    service.kill("it was not done in time" if is_late else "it had nothing to do yet")
                service.drop()
            elif service.state is ServiceState.SERVING and self._may_finish(service):
                self._out.append(actions.Tell(service.task, messages.Finish()))
                service.finish()
        is_hopeless = now_s >= self._end_s + TREE_S_MAX  # killed, and still there
        if is_hopeless or self._are_all_gone():
            self._quit(now_s)

    @property
    def _finish_s_max(self) -> float:
        return max((service.spec.finish_s_max for service in self.services.values()), default=0.0)

    def _may_finish(self, service: ServiceSupervisor) -> bool:
        return self.chief.unsettled is None or not service.spec.keeps_state

    def _wake_services(self) -> None:
        """One that is stopped (SIGSTOP) would not hear that the run ends; to any other SIGCONT says nothing."""
        for service in self.services.values():
            if service.pid:
                self._out.append(actions.Signal(service.task, service.incarnation, signal.SIGCONT))

    def _are_all_gone(self) -> bool:
        return not self.standby.pid and all(service.is_over and not service.pid for service in self.services.values())

    def _services_end_s(self, now_s: float) -> float:
        """When a stopped run's services must be done: 22 s of 25 after the stop, and never less than 5 s from now."""
        grace_s = self.settings.launch.grace_s
        return max(self._stop_s + grace_s * (TRAINER_SHARE + SERVICES_SHARE), now_s + grace_s * SERVICES_SHARE)

    def _has_nothing_to_do(self, service: ServiceSupervisor) -> bool:
        """A service that is still starting, in a run none of whose tasks has ever spoken to anybody, is not waited for."""
        was_connected = any(task.was_connected for task in self.tasks.values())
        return not service.is_up and not was_connected and self.chief.snapshots.memory_step == NO_STEP

    def _quit(self, now_s: float) -> None:
        task = self.chief
        if (
            task.unsettled is not None and max(task.step, task.snapshots.memory_step) != NO_STEP
        ):  # else it never had a state
            task.unsaved = task.unsaved or "the checkpoint service could not do it in time"
        goodput = task.goodput.value(now_s)
        why = self._why_failed()
        if why:
            self.exit_code = exit_codes.GAVE_UP
            if not self._given_up():
                self._out.append(actions.Journal("gave_up", task.task, task.incarnation, {"why": why}))
                if why != self.failure:
                    self._out.append(actions.Say(f"gave up: {why}", is_bad=True))
        elif task.life.state is State.DONE:
            self.exit_code = exit_codes.DONE
            done = {"step": task.step, "goodput": goodput}
            self._out.append(actions.Journal("run_completed", task.task, task.incarnation, done))
        else:
            self.exit_code = exit_codes.RESUMABLE
            source = self.stop_source or "the program itself"
            stopped = {"step": task.step, "durable_step": task.durable_step, "source": source}
            self._out.append(actions.Journal("stopped", task.task, task.incarnation, stopped))
        moves = self.moves and self.exit_code == exit_codes.RESUMABLE
        self._out.append(actions.Quit(self.exit_code, bool(task.unsaved) and not self.is_taken, moves))

    def _why_failed(self) -> str:
        """Why the run ends with exit code 70; "" if it does not."""
        if given_up := self._given_up():
            return given_up[0].gave_up
        if self.failure:
            return self.failure
        for task in self.tasks.values():
            if task.life.state is State.UNKILLABLE:
                return f"process {task.pid or f'(a child of the {task.task})'} does not die, although it was killed"
        if unsaved := self.chief.unsaved or self.chief.snapshots.lost(self.chief.durable_step):
            return f"the newest state of the program is not on disk: {unsaved}"
        return ""
