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
from typing import TYPE_CHECKING

from procsv.base import exit_codes
from procsv.base.errors import ProcsvBug
from procsv.base.grace import SERVICES_SHARE, TRAINER_SHARE
from procsv.base.identity import CHECKPOINT, STANDBY, SUMMARY, TRAINER
from procsv.base.outcome import NO_STEP
from procsv.base.units import show_duration
from procsv.ipc.messaging.messages import (
    Ack,
    Durable,
    Finish,
    FlushDone,
    Rejected,
    SaveFailed,
    ServiceLost,
    TrainerExited,
    Unwritable,
)
from procsv.watchdog.core.events import (
    Action,
    Ended,
    Event,
    Journal,
    KillTree,
    NotPromoted,
    NotSpawned,
    PreemptAsked,
    Promoted,
    Quit,
    RecycleAsked,
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
from procsv.watchdog.core.lifecycle import State
from procsv.watchdog.core.save_status import Saves
from procsv.watchdog.core.service import ServiceState, ServiceSupervisor, supervise_service
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.core.standby import Standby
from procsv.watchdog.core.trainer import TREE_S_MAX, TrainerSupervisor

if TYPE_CHECKING:
    from random import Random

BEFORE_ITS_STATE = (State.PENDING, State.IMPORTING, State.CONNECTED, State.RESTORING)
FINISH_S_MAX = 900.0  # for the services, after training is done: big checkpoints on slow disks; then they are killed


class Core:
    def __init__(self, settings: Settings, first_incarnation: int, rng: Random, now_s: float) -> None:
        self.settings = settings
        self.started_s = now_s
        self._out: list[Action] = []
        self.standby = Standby(settings.launch.standby, self._out)
        self.tasks = [TrainerSupervisor(first_incarnation, settings, rng, now_s, self.standby, self._out)]
        self.services = {task: supervise_service(task, settings, self._out) for task in settings.services}
        self.stop_source = ""  # who asked for the end; set before anything is done about it
        self.failure = ""  # why the run cannot go on, where it is not the trainer's own doing
        self.exit_code: int | None = None
        self.settled_step = NO_STEP
        self._stop_s = 0.0
        self._end_s: float | None = None  # deadline of the services, once the run is ending
        self._told_ended = 0  # the trainer whose death the checkpoint service that runs has been told of
        self.saves = Saves()

    @property
    def task(self) -> TrainerSupervisor:
        """The only one, today."""
        return self.tasks[0]

    @property
    def is_ending(self) -> bool:
        return self._end_s is not None or bool(self.stop_source)

    @property
    def word(self) -> str:
        """The run's state as people read it."""
        if self.exit_code is not None:
            return {exit_codes.DONE: "done", exit_codes.RESUMABLE: "stopped"}.get(self.exit_code, "failed")
        if self.is_ending and self.task.life.state is not State.UNKILLABLE:
            return "stopping"
        return self.task.life.state.word

    def start(self, now_s: float) -> list[Action]:
        """The first actions: the services, then the trainer."""
        for service in self.services.values():
            self._out.append(Spawn(service.task, service.start(now_s)))
        self.task.start(now_s)
        return self._take()

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What is to be done about `event`."""
        match event:
            case Spawned():
                self._spawned(event)
            case NotSpawned():
                self._not_spawned(event, now_s)
            case Ended(task=task) if task == TRAINER:
                self._trainer_ended(event, now_s)
            case Ended(task=task) if task == STANDBY:
                self.standby.died(event, now_s)
            case Ended():
                self._service_ended(event, now_s)
            case TreeGone(incarnation):
                self.task.tree_gone(incarnation, now_s)
            case Said(task=task) if task == TRAINER:
                self.task.said(event, now_s)
            case Said():
                self._service_said(event, now_s)
            case ServiceReady(task, incarnation):
                self.services[task].ready(incarnation)
            case Ticked():
                self._ticked(event, now_s)
            case StandbySaid():
                self.standby.said(event, now_s)
            case Promoted():
                self._promoted(event, now_s)
            case NotPromoted():
                self.standby.not_promoted(event, now_s)
                self.task.not_promoted(now_s)
            case StopAsked():
                self._stop_asked(event, now_s)
            case RecycleAsked(why, by_hand):
                if not (self.is_ending or self.settings.observes):
                    self.task.recycle(why, by_hand, now_s)
            case PreemptAsked(grace_s, source):
                if not (self.is_ending or self.settings.observes):
                    self.task.preempt(grace_s, source, now_s)
        self._go_on(now_s)
        return self._take()

    def next_due_s(self) -> float | None:
        """When a Ticked will have something to do, whatever else happens."""
        dues = [
            self.task.next_due_s(),
            self.standby.next_due_s(),
            self._end_s,
            *(service.next_due_s() for service in self.services.values()),
        ]
        return min((due for due in dues if due is not None), default=None)

    def _take(self) -> list[Action]:
        actions = list(self._out)
        self._out.clear()
        return actions

    # -- processes -----------------------------------------------------------------------------------------
    def _spawned(self, event: Spawned) -> None:
        self._out.append(Journal("spawned", event.task, event.incarnation, {"pid": event.pid}))
        if event.task == TRAINER:
            self.task.pid = event.pid
            return
        if event.task == STANDBY:
            self.standby.spawned(event)
            return
        self.services[event.task].pid = event.pid
        if event.incarnation > 1:
            self._out.append(Journal("service_restarted", event.task, event.incarnation, {"pid": event.pid}))

    def _not_spawned(self, event: NotSpawned, now_s: float) -> None:
        if event.task == TRAINER:
            self.task.not_spawned(event.error, now_s)
        elif event.task == STANDBY:
            self.standby.not_spawned(event, now_s)
        else:
            text = f"cannot start the {event.task} service: {event.error}; trying again"
            self._out.append(Say(text, is_bad=True))
            self.services[event.task].not_spawned(now_s)

    def _promoted(self, event: Promoted, now_s: float) -> None:
        self.standby.promoted(event, now_s)
        fields = {"pid": event.pid, "standby": event.number}
        self._out.append(Journal("promoted", TRAINER, event.incarnation, fields))
        self._spawned(Spawned(TRAINER, event.incarnation, event.pid))

    def _trainer_ended(self, event: Ended, now_s: float) -> None:
        """A standby that had not answered yet was no trainer, unless somebody had asked the trainer to end."""
        if self.standby.is_becoming(event.incarnation):
            if self.task.life.state is State.PENDING:
                self.standby.died(event, now_s)
                self.task.not_promoted(now_s)
                return
            self._promoted(Promoted(self.standby.number, event.incarnation, self.standby.pid), now_s)
        self.task.died(event, now_s)

    def _service_ended(self, event: Ended, now_s: float) -> None:
        service = self.services[event.task]
        if event.incarnation != service.incarnation:
            return
        if event.beat is not None:
            service.beat(event.beat)
        if service.task == CHECKPOINT:
            self._told_ended = 0
        fields = service.exited_fields(event, service.cause(event))
        service.ended(event.exit, self._is_needed(service, now_s), now_s)
        self._out.append(Journal("exited", event.task, event.incarnation, fields))
        if service.state is ServiceState.LOST:
            why = f"{service.why_lost}; what it said: {event.log}"
            self._out.append(Tell(TRAINER, ServiceLost(service.task, why)))
            self._fail(why, now_s, is_hopeless=service.task == CHECKPOINT, last_lines=event.last_lines)
        elif service.restart_s is not None:
            text = f"the {service.task} service ended ({event.exit}); starting it again, training goes on"
            self._out.append(Say(text, is_bad=True))

    def _is_needed(self, service: ServiceSupervisor, now_s: float) -> bool:
        """Whether a service that has just died is started again."""
        if service.is_over:
            return False
        if self._end_s is None:
            return True
        return now_s < self._end_s and not self._has_nothing_to_do(service)

    # -- news of the services ------------------------------------------------------------------------------
    def _service_said(self, said: Said, now_s: float) -> None:
        service = self.services[said.task]
        if said.incarnation != service.incarnation:
            return
        match said.body:
            case Durable() as news:
                self._durable(news, service)
            case SaveFailed() as news:
                self._out += self.saves.failed(news, service.incarnation, now_s)
            case Unwritable() as news:
                self._out += self.saves.unwritable(news, service.incarnation, self.task.step)
            case Rejected(path, why) as news:
                fields = {"path": path, "why": why}
                self._out.append(Journal("checkpoint_rejected", service.task, service.incarnation, fields))
                self.task.rejected(news)
            case FlushDone() as news:
                self.settled_step = max(self.settled_step, news.step)
                self._settled(news, said.answers, now_s)
            case Ack():
                pass
            case body:
                raise ProcsvBug(f"{type(body).__name__} has no handler")

    def _durable(self, news: Durable, service: ServiceSupervisor) -> None:
        if self.saves.is_news(news):
            service.history.worked()
            self._out += self.saves.durable(news, service.incarnation)
            self.task.durable(news)

    def _settled(self, news: FlushDone, answers: TrainerExited | Finish | None, now_s: float) -> None:
        if isinstance(answers, TrainerExited):
            self.task.settled(news, answers, now_s)
        elif news.error and not self.task.unsaved:
            self.task.unsaved = news.error

    # -- time ----------------------------------------------------------------------------------------------
    def _ticked(self, event: Ticked, now_s: float) -> None:
        for task, beat in event.beats.items():
            if task == TRAINER:
                self.task.beat(beat, now_s)
            else:
                self.services[task].beat(beat)
        if self.task.pid:
            self.task.memory_step = event.memory_step
            self.task.watch(event.beats.get(TRAINER), event.is_stopped, now_s)
        for task, service in self.services.items():
            service.watch(event.beats.get(task), event.doing.get(task, ""), now_s)
        self.task.tick(now_s)
        self.standby.tick(now_s, event.room_bytes)

    def _stop_asked(self, event: StopAsked, now_s: float) -> None:
        again = bool(self.stop_source)
        self.stop_source = self.stop_source or event.source
        if not again:
            self._stop_s = now_s
            self._out.append(WriteRun())  # before any signal: nothing is started again from here on
            self._wake_services()
            if event.is_notice:
                fields = {"grace": self.settings.launch.grace_s, "source": event.source}
                self._out.append(Journal("preempt_notice", TRAINER, self.task.incarnation, fields))
            if not self.task.ends_run:
                how = "now" if event.now else f"at its next step, {show_duration(self.task.stop_s)} at most"
                self._out.append(Say(f"{event.source}: stopping the program {how}"))
        if self._end_s is not None:  # it is over already; the services get no longer than a stop would give them
            self._end_s = min(self._end_s, self._services_end_s(now_s))
        elif event.now or not again:
            why = f"{event.source} asked for an end at once" if event.now else event.source
            self.task.stop(event.now, why, now_s, "preempt" if event.is_notice else "final")

    def _fail(self, why: str, now_s: float, is_hopeless: bool, last_lines: tuple[str, ...]) -> None:
        """The run cannot go on: the trainer is asked to stop, then everything ends.

        `is_hopeless`: a trainer that has not got its state yet will never get it; it is not waited for.
        """
        said = "\n".join(f"  {line}" for line in last_lines)
        if self.settings.observes:
            self._out.append(Say(f"{why}; it is not started again, the program goes on", is_bad=True, traceback=said))
            return
        self.failure = self.failure or why
        self._out.append(Say(f"giving up: {why}", is_bad=True, traceback=said))
        if not self.is_ending:
            self.stop_source, self._stop_s = "a lost service", now_s
            self._out.append(WriteRun())
            self.task.stop(is_hopeless and self.task.life.state in BEFORE_ITS_STATE, why, now_s)

    # -- the order of things -------------------------------------------------------------------------------
    def _go_on(self, now_s: float) -> None:
        """What the state of everything calls for, whatever led to it."""
        ended, checkpoint = self.task.unsettled, self.services.get(CHECKPOINT)
        if checkpoint is None:
            self.task.unsettled = None
        elif ended is not None and checkpoint.is_up and self._told_ended != ended.incarnation:
            self._told_ended = ended.incarnation
            self._out.append(Tell(CHECKPOINT, ended))
        if self.is_ending or self.task.ends_run:
            self.standby.unwanted(now_s, "the run ends")
        if self.task.ends_run and self.exit_code is None:
            self._end(now_s)
        for service in self.services.values():
            if service.is_due(now_s):
                self._out.append(Spawn(service.task, service.start(now_s)))

    def _end(self, now_s: float) -> None:
        """One more step of the end of the run."""
        if self._end_s is None:
            self._end_s = self._services_end_s(now_s) if self.stop_source else now_s + FINISH_S_MAX
            self._out.append(WriteRun())
            self._wake_services()
        is_late = now_s >= self._end_s
        for service in self.services.values():
            if service.is_over:
                continue
            if is_late or self._has_nothing_to_do(service):
                if service.pid:
                    self._out.append(KillTree(service.task, service.incarnation))
                    service.kill("it was not done in time" if is_late else "it had nothing to do yet")
                service.drop()
            elif service.state is ServiceState.SERVING and (service.task == SUMMARY or self.task.unsettled is None):
                self._out.append(Tell(service.task, Finish()))
                service.finish()
        is_hopeless = now_s >= self._end_s + TREE_S_MAX  # killed, and still there
        if is_hopeless or self._are_all_gone():
            self._quit(now_s)

    def _wake_services(self) -> None:
        """One that is stopped (SIGSTOP) would not hear that the run ends; to any other SIGCONT says nothing."""
        for service in self.services.values():
            if service.pid:
                self._out.append(Signal(service.task, service.incarnation, signal.SIGCONT))

    def _are_all_gone(self) -> bool:
        return not self.standby.pid and all(service.is_over and not service.pid for service in self.services.values())

    def _services_end_s(self, now_s: float) -> float:
        """When a stopped run's services must be done: 22 s of 25 after the stop, and never less than 5 s from now."""
        grace_s = self.settings.launch.grace_s
        return max(self._stop_s + grace_s * (TRAINER_SHARE + SERVICES_SHARE), now_s + grace_s * SERVICES_SHARE)

    def _has_nothing_to_do(self, service: ServiceSupervisor) -> bool:
        """A service that is still starting, in a run whose trainer has never spoken to anybody, is not waited for."""
        return not service.is_up and not self.task.was_connected and self.task.memory_step == NO_STEP

    def _quit(self, now_s: float) -> None:
        task = self.task
        if task.unsettled is not None and max(task.step, task.memory_step) != NO_STEP:  # else it never had a state
            task.unsaved = task.unsaved or "the checkpoint service could not do it in time"
        goodput = task.goodput.value(now_s)
        why = self._why_failed()
        if why:
            self.exit_code = exit_codes.GAVE_UP
            if not task.gave_up:
                self._out.append(Journal("gave_up", TRAINER, task.incarnation, {"why": why}))
                if why != self.failure:
                    self._out.append(Say(f"gave up: {why}", is_bad=True))
        elif task.life.state is State.DONE:
            self.exit_code = exit_codes.DONE
            done = {"step": task.step, "goodput": goodput}
            self._out.append(Journal("run_completed", TRAINER, task.incarnation, done))
        else:
            self.exit_code = exit_codes.RESUMABLE
            source = self.stop_source or "the program itself"
            stopped = {"step": task.step, "durable_step": task.durable_step, "source": source}
            self._out.append(Journal("stopped", TRAINER, task.incarnation, stopped))
        self._out.append(Quit(self.exit_code, keep_memory=bool(task.unsaved)))

    def _why_failed(self) -> str:
        """Why the run ends with exit code 70; "" if it does not."""
        task = self.task
        if task.gave_up or self.failure:
            return task.gave_up or self.failure
        if task.life.state is State.UNKILLABLE:
            return f"process {task.pid or '(a child of the trainer)'} does not die, although it was killed"
        if task.unsaved:
            return f"the newest state of the program is not on disk: {task.unsaved}"
        return ""
