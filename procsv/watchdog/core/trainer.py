"""One task of a run: a trainer, through all its incarnations, from its first start to its end.

Used by run.py, one for each task of the run.  Feeds the lifecycle table and carries its actions out as
actions for the reactor.  Pure: time and facts are arguments, actions are appended to a list.
"""

from __future__ import annotations

import signal
from random import Random

import msgspec

from procsv.base import exit_codes
from procsv.base.cluster import PS
from procsv.base.errors import ProcsvBug
from procsv.base.grace import TRAINER_SHARE
from procsv.base.identity import TaskId
from procsv.base.outcome import NO_STEP, FitPlace, LastExit, LastWords
from procsv.base.run.manifest import Reason
from procsv.base.units import show_duration
from procsv.ipc.messaging import messages
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core import wording
from procsv.watchdog.core.actions import Action, ClearTree, Journal, KillTree, Report, Say, Signal, Tell, WriteRun
from procsv.watchdog.core.adoption import Adopted
from procsv.watchdog.core.causes import Cause, Kind, Known, classify, find_end, name_failure
from procsv.watchdog.core.events import Ended, Said
from procsv.watchdog.core.goodput import Attempt, Goodput
from procsv.watchdog.core.hangs.escalation import HangEscalation
from procsv.watchdog.core.hangs.trainer_liveness import Liveness, StepTimes
from procsv.watchdog.core.lifecycle import Lifecycle, LifecycleAction, LifecycleEvent, State
from procsv.watchdog.core.protection import Protection
from procsv.watchdog.core.restart_policy import Death, GiveUp, History, Restart
from procsv.watchdog.core.restart_table import End
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.core.snapshot_record import SnapshotRecord
from procsv.watchdog.core.standby import Standby

TREE_S_MAX = 30.0  # what was killed and is still there after this long is called unkillable

_PHASES = {
    Phase.IMPORT: LifecycleEvent.IMPORTS,
    Phase.CONNECT: LifecycleEvent.CONNECTS,
    Phase.SERVE: LifecycleEvent.CONNECTS,
    Phase.RESTORE: LifecycleEvent.RESTORES,
    Phase.COMPILE: LifecycleEvent.COMPILES,
    Phase.STEP: LifecycleEvent.STEPS,
}
_DEATHS = {Kind.DONE: LifecycleEvent.FINISHED, Kind.CHECKPOINTED: LifecycleEvent.CHECKPOINTED}


class TrainerSupervisor:
    """The trainer.  `out` takes the actions."""

    def __init__(
        self,
        task: TaskId,
        incarnation: int,
        settings: Settings,
        rng: Random,
        now_s: float,
        standby: Standby,
        out: list[Action],
    ) -> None:
        self.task = task
        self.life = Lifecycle()
        self.history = History(settings.launch, rng, restarts=not settings.observes)
        liveness = Liveness(settings.launch, StepTimes(settings.learned_step_s))
        self.hanging = HangEscalation(task, liveness, settings.launch, out)
        self.goodput = Goodput(now_s, settings.earlier)
        self.incarnation = incarnation  # of the trainer that runs, or of the next one
        self.pid = 0
        self.step, self.durable_step, self.snapshots = NO_STEP, settings.saved_step, SnapshotRecord()
        self.began_step = settings.began_step
        self.fit: FitPlace | None = None
        self.protection = Protection(settings.launch)
        self.steps_total = settings.launch.steps_total or NO_STEP
        self.phase: Phase | None = None
        self.restarts = 0
        self.last_exit: LastExit | None = None
        self.last_words: LastWords | None = None
        self.was_connected = False  # one of this launch has introduced itself: it may have left something to save
        self.ends_run = False
        self.gave_up = ""  # why
        self.unsettled: messages.TrainerExited | None = None  # what the checkpoint service has still to answer
        self.deletes_logdir = False  # the program, at its start, with the checkpoints in it
        self.unsaved = ""  # why the newest state of the last trainer is not on disk
        self.restart_s: float | None = None  # monotonic time of the next start
        self._keeps_state = task == settings.tasks[0]  # of the others nothing is saved
        self._model_outlives_it = any(other.role == PS for other in settings.tasks)  # servers have the variables
        self._grace_s, self._observes = settings.launch.grace_s, settings.observes
        self._is_detached = settings.launch.detach
        self._standby = standby
        self._out = out
        self._death_s = now_s  # of the old trainer; of none, the start of the run
        self._last_death: Ended | None = None
        self._attempt = Attempt()  # the last one that has ended
        self._own_step = NO_STEP  # as read from the trainer that runs, or ran last; `step` outlives it
        self._reported_ready = 0  # incarnation
        self._tree_is_gone = True
        self._stop_is_told = False
        self._kill_at_s: float | None = None
        self._killed_s: float | None = None
        self._we_killed = ""
        self._resumed_step = NO_STEP  # what the trainer that runs goes on from, as far as is known
        self._recycled = ""  # why the trainer that runs was asked to save and end
        self._stop_reason: Reason = "final"
        self._own_grace_s: float | None = None  # of a preemption: until the kill
        self._stalled_s = 0.0  # how long the program that is observed made no progress
        self._frozen_s: float | None = None  # since when the trainer that runs is stopped by a signal
        self._serving_s: float | None = None  # since when it serves variables to others
        self.has_served = False  # in this launch
        self._is_suspected = False  # of doing nothing at all; said once
        self._verdict: GiveUp | None = None  # stands if what is being saved is no progress
        self.end: End | None = None  # how the last attempt has ended
        self.gang_size = 0  # of the tasks that are started again with it; 0: it is by itself
        self._keeper = self  # of what it would resume from
        self.is_held = False  # until all of its gang are gone
        self._lost_why = ""  # how another's end has ended it, of its gang
        self._avoid_step = NO_STEP  # what another of its gang has resumed from, and crashed again and again
        self._untold = ""  # of a gang, whose end: said with what follows

    # -- what happens --------------------------------------------------------------------------------------
    def start(self, now_s: float) -> None:
        if not self._standby.is_first:
            self._do((LifecycleAction.SPAWN,), now_s)
            return
        self.restart_s = now_s
        self.life.handle(LifecycleEvent.STANDBY_FIRST)

    def adopt(self, one: Adopted, now_s: float) -> None:
        """It runs already, by the order of a coordinator before this one; its attempt goes on."""
        self.incarnation, self.pid, self.was_connected = one.incarnation, one.pid, True
        self.hanging.start_watch(now_s)
        self.protection.start_attempt(now_s)
        adopted = Journal("adopted", self.task, self.incarnation, {"pid": one.pid, "host": one.host})
        self._out += [adopted, Say(wording.goes_on_after_coordinator(self.task, one))]
        if one.is_ready:
            self._reported_ready = self.incarnation
            self.history.ready(self.durable_step)
            self.goodput.start_training(now_s, max(self.durable_step, 0))
            self._handle(LifecycleEvent.READY, now_s)

    def not_spawned(self, error: str, now_s: float) -> None:
        if self._is_not_needed(error, now_s):
            return
        self._out.append(Say(f"cannot start the {self.task}: {error}; trying again", is_bad=True))
        self.restart_s = now_s + self.history.not_spawned_delay_s()
        self.life.handle(LifecycleEvent.NOT_SPAWNED, error)

    def _is_not_needed(self, why: str, now_s: float) -> bool:
        """Whether it was asked to stop before it was started; then that was its end."""
        if self.life.state is not State.STOPPING:
            return False
        self._do(self.life.handle(LifecycleEvent.NOT_SPAWNED, why), now_s)
        return True

    def not_promoted(self, now_s: float) -> None:
        """The standby that was to be the trainer is not: a cold start follows, as soon as nothing of it is left."""
        if self._is_not_needed("the standby", now_s):
            return
        self.restart_s = now_s
        self.life.handle(LifecycleEvent.NOT_SPAWNED, "the standby")
        self._tree_is_gone, self._killed_s = False, now_s
        self._out.append(ClearTree(self.task, self.incarnation))

    def beat(self, beat: Heartbeat, now_s: float) -> None:
        """The heartbeat of the trainer that runs, as read now."""
        if not self.pid:
            return
        self._read(beat)
        event = _PHASES.get(beat.phase)
        if event is not None:
            self._handle(event, now_s)

    def see_memory(self, step: int) -> None:
        """The step of the newest snapshot that is in memory now."""
        self.snapshots.see_memory(step, self._own_step)

    def _read(self, beat: Heartbeat | None) -> None:
        if beat is not None:
            if beat.phase is Phase.SERVE and self._serving_s is None:
                self._serving_s, self.has_served = beat.beat_s, True
                self.history.served()
            self.phase = beat.phase
            if beat.step >= 0:
                self.step = self._own_step = beat.step
            self.fit = beat.fit or self.fit
            if news := self.protection.see(beat):
                self._out.append(news)

    def said(self, said: Said, now_s: float) -> None:
        """A message of the trainer that runs; what an older incarnation says changes nothing."""
        if said.incarnation != self.incarnation:
            return
        if not self.pid:
            self._said_at_its_end(said.body)
            return
        match said.body:
            case messages.Hello():
                self.was_connected = True
                self._handle(LifecycleEvent.HELLO, now_s)
            case messages.FirstStepDone() as recovered:
                self._recovered(recovered, now_s)
            case messages.Loaded():
                self._standby.loaded(now_s)
            case messages.Note("preempt_notice") if self._stop_is_told:
                pass  # the signal that it has heard was ours
            case messages.Note(event, fields):
                self._out.append(Journal(event, self.task, self.incarnation, dict(fields)))
                self.deletes_logdir |= event == "checkpoints_deleted" and not fields.get("kept")
                if event in ("snapshot_failed", "snapshots_resumed") and (news := self.snapshots.told(fields)):
                    self._out.append(news)
            case messages.AdoptLogdir() | messages.TrainsInStep() | messages.Ack():
                pass  # the first is answered by event_loop.py, which tells of it by LogdirAdopted; the second is the gang's
            case body:
                raise ProcsvBug(f"{type(body).__name__} has no handler")

    def _said_at_its_end(self, body: messages.Body) -> None:
        """It has ended, which is seen at once; what it had said before that came later, if nobody could listen for a while."""
        if isinstance(body, messages.Note) and body.event == "snapshot_failed" and body.fields["is_last"]:
            self._out.append(Journal(body.event, self.task, self.incarnation, dict(body.fields)))
            self.snapshots.told(body.fields)

    def _recovered(self, recovered: messages.FirstStepDone, now_s: float) -> None:
        self.step = self._own_step = max(self._own_step, recovered.step)
        if recovered.source == "checkpoint":
            self.durable_step = recovered.restored_step
        self._resumed_step = recovered.restored_step
        if self.began_step == NO_STEP or recovered.source == "fresh":
            self.began_step = recovered.restored_step
        self.steps_total = self.steps_total if recovered.steps_total < 0 else recovered.steps_total
        self.protection.has_session = True
        self.hanging.liveness.see_session()
        self.snapshots.recovered()
        self.history.ready(recovered.restored_step)
        if self._reported_ready != self.incarnation:
            self._reported_ready = self.incarnation
            self.goodput.start_training(recovered.ended_s, recovered.step)
            fields = wording.recovered_fields(recovered, self._death_s)
            ready = Journal("ready", self.task, self.incarnation, {"step": recovered.step})
            self._out += [ready, Journal("recovered", self.task, self.incarnation, fields)]
            if self._keeps_state and not self._observes:
                self._out.append(Say(wording.training(recovered, self._death_s, self.last_exit)))
        self._handle(LifecycleEvent.READY, now_s)

    def died(self, ended: Ended, now_s: float) -> None:
        if ended.incarnation != self.incarnation:
            return
        self._standby.trainer_died()
        self._frozen_s = None
        self._read(ended.beat)
        is_asked = self.life.state in (State.STOPPING, State.RECYCLING) and not self._lost_why
        stopping = is_asked or self.ends_run
        known = Known(
            self._own_step,
            is_stopping=stopping,
            is_observed=self._observes,
            serves=self._serving_s is not None,
            we_killed=self._we_killed,
            hang=self.hanging.evidence(ended.exit, ended.stacks),
            lost_peer=self._lost_why,
        )
        cause, kind = find_end(ended, known)
        self.last_words = ended.words
        self.last_exit = LastExit(ended.exit.code, ended.exit.signal_name, cause.word, cause.evidence, self._own_step)
        fields = {"pid": self.pid, **msgspec.structs.asdict(self.last_exit)}
        self._out.append(Journal("exited", self.task, self.incarnation, fields))
        self.snapshots.died(ended.memory_step, has_saved=kind in (Kind.DONE, Kind.CHECKPOINTED))
        self._attempt = self._end_attempt(ended, cause, kind, now_s)
        if (
            cause.word not in ("completed", "stopped")
            and kind is not Kind.CHECKPOINTED
            and not (self._lost_why or ended.lost)
        ):
            what = wording.sentence(cause.word, cause.evidence, self._own_step, serves=self._serving_s is not None)
            who = f"{self.task} {self.incarnation} (pid {self.pid})"
            sentence = f"{who} {what}"
            if not (self._observes and ended.words):  # of what it has printed itself, its terminal needs no more
                is_shown = ended.words is not None and ended.words.is_shown and not self._is_detached
                self._untold = f"{who} ended with the error above" if is_shown else sentence
                if not self.gang_size:
                    self._tell_end()
            self._out.append(Report(ended, cause, sentence, self._own_step, self.lost_steps, self.resume_step))
        self.hanging.end_watch()
        self._serving_s = None
        self._death_s, self.pid, self._last_death = now_s, 0, ended
        clean = stopping or kind in (Kind.DONE, Kind.CHECKPOINTED)
        if self._keeps_state:
            self.unsettled = messages.TrainerExited(self.incarnation, clean, self._avoid_step, self.task)
            self._avoid_step = NO_STEP
        self.end = self._name_end(kind)
        self._handle(_DEATHS.get(kind, LifecycleEvent.CRASHED), now_s, f"{ended.exit} at step {self._own_step}")
        self._tell_end()

    def _name_end(self, kind: Kind) -> End:
        if kind is Kind.DONE:
            return End.FINISHED
        return End.RETURNED if kind is Kind.CHECKPOINTED or (self._recycled and self._we_killed) else End.DIED

    def _tell_end(self) -> None:
        """Says how the last attempt has ended, unless that was said."""
        untold, self._untold = self._untold, ""
        if untold:
            self._out.append(Say(untold, is_bad=True))

    def _end_attempt(self, ended: Ended, cause: Cause, kind: Kind, now_s: float) -> Attempt:
        """What the attempt that has just ended was good for."""
        hang = self.hanging.name_failure(ended.stacks) if cause.word == "hang" else ""
        if hang:
            self.goodput.stood_still(self.hanging.stood_still_s(now_s))
        kept_step = self._own_step if kind is Kind.DONE else self.resume_step
        kept_s = self.goodput.end_training(now_s, self._own_step, kept_step)
        if self._serving_s is not None:  # of a server, the time in which it served
            kept_s = self.history.end_serving(now_s - self._serving_s)
        is_planned = kind is Kind.CHECKPOINTED or (self._recycled and self._we_killed)
        failure = "" if is_planned else name_failure(cause, ended.exit, ended.words, hang)
        return Attempt(now_s - self._death_s, kept_s, failure, cause.word == "oom")

    def tree_gone(self, incarnation: int, now_s: float) -> None:
        if incarnation == self.incarnation and not self._tree_is_gone:
            self._tree_is_gone, self._killed_s = True, None
            self._handle(LifecycleEvent.TREE_GONE, now_s)

    # -- its gang ------------------------------------------------------------------------------------------
    def bind(self, chief: TrainerSupervisor, size: int) -> None:
        """From here on it is one of a gang of `size`, which has one record of failures, and one state: the chief's."""
        self.history, self.gang_size, self._keeper = chief.history, size, chief

    def leave_gang(self, why: str, now_s: float) -> None:
        """Its gang is broken: it is ended, free of charge, and waits until it is let in again."""
        self.is_held = True
        if self.life.state is State.DONE:
            self.ends_run, self.restart_s = False, now_s
        elif self.life.state is not State.BACKOFF:
            frozen = "a signal (SIGSTOP) had stopped it; " if self._frozen_s is not None else ""
            self._lost_why = f"{frozen}{why}"
        self._handle(LifecycleEvent.GANG_BREAKS, now_s, why)

    @property
    def is_gone(self) -> bool:
        """Whether nothing of its last attempt is left, and it is to be started again."""
        return self.life.state is State.BACKOFF and self._tree_is_gone and self.restart_s is not None

    def rejoin_gang(self, start_s: float) -> None:
        """All of its gang are gone."""
        self.is_held, self.restart_s = False, start_s

    def durable(self, news: messages.Durable) -> None:
        if news.path in news.all_paths[-1:] or news.step > self.durable_step:  # else a later state was there already
            self.durable_step = news.step
        self.history.durable(news.step)

    def settled(self, news: messages.FlushDone, of: messages.TrainerExited, now_s: float) -> None:
        """What the dead trainer left is on disk, or cannot be."""
        if self.unsettled is None or of.incarnation != self.unsettled.incarnation:
            return
        self.unsettled, self.unsaved = None, news.error
        self.weigh_verdict(now_s)

    def weigh_verdict(self, now_s: float) -> None:
        """What was being saved is on disk, or cannot be: now it is known whether there was progress."""
        if self._verdict is not None:
            verdict, self._verdict = self._verdict, None
            if self.history.is_spent() or verdict.even_so:
                self._give_up(verdict.why if self.history.is_spent() else verdict.even_so, now_s)
            else:
                self._restart(0.0, now_s)  # progress after all

    def stop(self, now: bool, why: str, now_s: float, reason: Reason = "final") -> None:
        """The run is to end.  `now`: without waiting for the program.  `reason`: of its last checkpoint."""
        if now:
            self._we_killed = why
        self._verdict, self._stop_reason = None, reason
        self._handle(LifecycleEvent.KILL_ASKED if now else LifecycleEvent.STOP_ASKED, now_s, why)

    def recycle(self, why: str, by_hand: bool, now_s: float) -> None:
        """The trainer is to save, end and be started again; a planned restart costs nothing."""
        if by_hand:
            self.history.forgive()
            self.restart_s = now_s if self.restart_s is not None else None
        if self.life.is_live:
            self._recycled, self._stop_reason = why, "manual"
            self._out.append(Say(f"restarting the program: {why}"))
        self._handle(LifecycleEvent.RECYCLE_ASKED, now_s, why)

    def preempt(self, grace_s: float, source: str, now_s: float) -> None:
        """The trainer is told that its machine goes away, and killed when the grace is over; then it is started again."""
        if not self.pid or not self.life.is_live:
            return
        notice = Journal("preempt_notice", self.task, self.incarnation, {"grace": grace_s, "source": source})
        self._out += [notice, Say(f"{source}: preempting the program, {show_duration(grace_s)} of grace")]
        self._recycled, self._stop_reason, self._own_grace_s = f"preempted by {source}", "preempt", grace_s
        self._handle(LifecycleEvent.RECYCLE_ASKED, now_s, source)

    def watch(self, beat: Heartbeat | None, is_stopped: bool, activity: int | None, now_s: float) -> None:
        """Looks whether the trainer that runs gets anywhere; `activity`: of its processes, if they were looked at."""
        self._watch_freezes(is_stopped, now_s)
        self.hanging.liveness.read_activity(activity, now_s)
        if self.pid and self.hanging.is_found(beat, is_stopped, now_s):
            self._handle(LifecycleEvent.STALLS if self._observes else LifecycleEvent.HANGS, now_s)
        elif self.life.state is State.STALLED and (seconds := self.hanging.goes_on(beat, now_s)) is not None:
            self._stalled_s = seconds
            self._handle(LifecycleEvent.MOVES, now_s)
        elif self.life.is_live and not self._observes:
            self._watch_without_session(now_s)

    def _watch_without_session(self, now_s: float) -> None:
        """Says what can be said of a program that has no session; it may be no training, and is left alone."""
        if self._keeps_state:
            self._out += self.protection.warn(self.task, self.incarnation, now_s)
        hang = self.hanging.liveness.suspicion(now_s)
        if hang is not None and not self._is_suspected:
            self._is_suspected = True
            self._out += wording.does_nothing(self.task, self.incarnation, hang)

    def _watch_freezes(self, is_stopped: bool, now_s: float) -> None:
        """Time in which a signal (SIGSTOP) keeps the trainer from running is no training; journaled when it goes on."""
        if is_stopped and self.pid and self.life.state is State.RUNNING:
            self._frozen_s = now_s if self._frozen_s is None else self._frozen_s
            return
        since_s, self._frozen_s = self._frozen_s, None
        if since_s is None or self.life.state is not State.RUNNING:
            return  # one that did not go on has hung, or was ended, which is told as that
        seconds = round(now_s - since_s, 3)
        self.goodput.stood_still(seconds)
        self._out.append(Journal("frozen", self.task, self.incarnation, {"seconds": seconds, "step": self._own_step}))
        self._out.append(Say(f"the program goes on: a signal had stopped it for {show_duration(seconds)}"))

    def check_deadlines(self, now_s: float) -> None:
        if self.life.state is State.HUNG and self.hanging.is_to_be_killed(self.incarnation, now_s):
            self._do((LifecycleAction.KILL_TREE,), now_s)
        late = {State.STOPPING: LifecycleEvent.KILL_ASKED, State.RECYCLING: LifecycleEvent.RECYCLE_LATE}.get(
            self.life.state
        )
        if self._kill_at_s is not None and now_s >= self._kill_at_s and self._observes:
            self._kill_at_s = None
            self._out.append(Say(wording.NOT_STOPPED, is_bad=True))
        if self._kill_at_s is not None and now_s >= self._kill_at_s and late is not None:
            self._we_killed = wording.too_late(self._grace_s, self._own_grace_s)
            self._kill_at_s = None
            self._handle(late, now_s, self._we_killed)
        if self._killed_s is not None and now_s - self._killed_s >= TREE_S_MAX:
            self._killed_s = None
            self._handle(LifecycleEvent.TREE_STAYS, now_s)
        if self._is_startable(now_s):
            self._handle(LifecycleEvent.DELAY_OVER, now_s)

    def _is_startable(self, now_s: float) -> bool:
        start_s = self._start_s()
        return start_s is not None and now_s >= start_s and self.life.state is State.BACKOFF

    def _start_s(self) -> float | None:
        """When the next trainer can be started; not before its tree is gone, and a standby that is nearly there is waited for."""
        if self.restart_s is None or not self._tree_is_gone or self.is_held:
            return None
        return self._standby.start_s(self.restart_s)

    def next_due_s(self) -> float | None:
        """When `check_deadlines` will have something to do."""
        killed_s = None if self._killed_s is None else self._killed_s + TREE_S_MAX
        dues = (self._start_s(), self._kill_at_s, killed_s, self.hanging.next_due_s())
        return min((due for due in dues if due is not None), default=None)

    # -- what is seen --------------------------------------------------------------------------------------
    @property
    def stop_s(self) -> float:
        """What the trainer gets to end: its share of the grace, or all of a preemption's."""
        return self._own_grace_s if self._own_grace_s is not None else self._grace_s * TRAINER_SHARE

    @property
    def state_word(self) -> str:
        """Its state as people read it."""
        if self.is_serving:
            return "serving"
        awaits_first = self.life.state is State.BACKOFF and self._last_death is None and self._standby.pid
        return (State.IMPORTING if awaits_first else self.life.state).word

    @property
    def is_serving(self) -> bool:
        """Whether it serves variables to others now."""
        return self._serving_s is not None and self.life.state is State.CONNECTED

    @property
    def is_before_session(self) -> bool:
        """Whether the trainer that runs has not asked for a session yet, so that it has no state of its own."""
        return bool(self.pid) and self._own_step == NO_STEP and self.phase in (None, Phase.IMPORT)

    @property
    def steps_per_s(self) -> float | None:
        """How many steps of its own the task that trains makes in a second; None as long as it does not, or nobody knows."""
        call_s = self.hanging.liveness.calls.median_s
        is_known = self.life.state is State.RUNNING and call_s > 0.0
        return float(f"{1.0 / call_s:.4g}") if is_known else None

    def is_suspect(self, now_s: float) -> bool:
        """Whether its heartbeat has stopped.  Shown, and nothing else: it may be in a long call that holds the GIL."""
        return bool(self.pid) and self.hanging.liveness.is_silent(now_s)

    def wants_activity(self, now_s: float) -> bool:
        """Whether it is to be looked whether its processes do anything."""
        return bool(self.pid) and self.life.is_live and self.hanging.liveness.wants_activity(now_s)

    @property
    def resume_step(self) -> int:
        """The step that the next trainer would go on from; what an earlier launch left counts, though only seen by name."""
        return max(self.snapshots.memory_step, self.durable_step)

    @property
    def lost_steps(self) -> int:
        """What the next trainer has to do again: nothing, if others have the variables, or their state is saved."""
        if self._model_outlives_it or not self._keeps_state:
            return 0
        return max(0, self._own_step - max(self.resume_step, 0))

    # -- what follows --------------------------------------------------------------------------------------
    def _handle(self, event: LifecycleEvent, now_s: float, detail: str = "") -> None:
        was = self.life.state
        self._do(self.life.handle(event, detail), now_s)
        if self.life.state is not was:
            self._out.append(WriteRun())

    def _do(self, actions: tuple[LifecycleAction, ...], now_s: float) -> None:
        for action in actions:
            match action:
                case LifecycleAction.SPAWN:
                    self._spawn(now_s)
                case LifecycleAction.DUMP_STACKS:
                    self.hanging.start_escalation(self.incarnation, now_s)
                case LifecycleAction.REPORT_HANG:
                    self.hanging.report_hang(self.incarnation, now_s, "it was not started by procsv, and is left alone")
                case LifecycleAction.REPORT_PROGRESS:
                    self._out += wording.goes_on(self.task, self.incarnation, self._stalled_s, self._own_step)
                case LifecycleAction.TELL_STOP:
                    self._tell_stop(now_s)
                case LifecycleAction.KILL_TREE:
                    self._out.append(KillTree(self.task, self.incarnation))
                    self._killed_s, self._kill_at_s = now_s, None
                    self.hanging.end_watch()
                case LifecycleAction.CLEAN_UP:
                    self._tree_is_gone, self._killed_s, self._kill_at_s = False, now_s, None
                    has_ended = self._last_death is not None and self._last_death.exit.code == 0 and not self._observes
                    self._out.append(ClearTree(self.task, self.incarnation, has_ended))
                case LifecycleAction.DECIDE_RESTART:
                    self._decide_restart(now_s)
                case LifecycleAction.ALERT:
                    text = (
                        f"processes of {self.task} {self.incarnation} do not die; nothing else may write to the logdir"
                    )
                    self._out.append(Say(text, is_bad=True))
                case LifecycleAction.END_RUN:
                    self.ends_run, self.restart_s = True, None

    def _spawn(self, now_s: float) -> None:
        self.restart_s, self.phase, self._own_step = None, None, NO_STEP
        keeper = self._keeper
        self._resumed_step = (
            keeper.snapshots.memory_step if self.history.durable_step == NO_STEP else keeper.resume_step
        )
        if self._last_death is not None and self._last_death.incarnation == self.incarnation:
            self.incarnation += 1
            self.restarts += 1
        self._we_killed, self._recycled, self._stop_is_told = "", "", False
        self._lost_why = ""
        self.snapshots.start_attempt()
        self._stop_reason, self._own_grace_s = "final", None
        self.hanging.start_watch(now_s)
        self.protection.start_attempt(now_s)
        self._out.append(self._standby.start_of(self.task, self.incarnation, now_s))

    def _tell_stop(self, now_s: float) -> None:
        self.hanging.end_watch()
        ends_run = self.life.state is State.STOPPING
        self._out.append(Tell(self.task, messages.StopTraining(self.stop_s, self._stop_reason, ends_run)))
        if not self._stop_is_told:
            self._stop_is_told = True
            self._kill_at_s = now_s + self.stop_s
            if self._observes:
                return  # it has no handler of ours: a signal would kill it
            self._out.append(Signal(self.task, self.incarnation, signal.SIGTERM))
            self._out.append(Signal(self.task, self.incarnation, signal.SIGCONT))  # a stopped one would not hear it

    def _decide_restart(self, now_s: float) -> None:
        ended = self._last_death
        assert ended is not None, "a restart to decide on, and no death"
        if self.ends_run:
            return
        if self._lost_why:
            self._restart(0.0, now_s)
            return
        if self._observes and ended.exit.code in (exit_codes.RESUMABLE, exit_codes.INTERRUPTED):
            self._handle(LifecycleEvent.STOP_ASKED, now_s, str(ended.exit))  # by itself, or by the user's Ctrl-C
            return
        if self._recycled and (self._we_killed or classify(ended.exit) is Kind.CHECKPOINTED):
            self._restart(self.history.recycle_delay_s(self._attempt), now_s)
            return
        death = Death(ended.exit, ended.words, self._own_step, self._attempt)
        verdict = self.history.decide_restart(death)
        keeper = self._keeper
        if (self._keeps_state or self.gang_size) and self.history.suspects(
            death, self._resumed_step, max(keeper.resume_step, keeper.snapshots.taken_step)
        ):
            keeper.go_back(self._resumed_step)
        if isinstance(verdict, Restart):
            self._restart(verdict.delay_s, now_s)
        elif verdict.is_final or not (self._keeps_state or self.gang_size):
            resumes = ", and it resumes" if self._observes and self.resume_step >= 0 else ""
            self._give_up(verdict.why + resumes, now_s)
        else:
            self._verdict = verdict  # what is being saved now may be progress: looked at again in `settled`

    def go_back(self, step: int) -> None:
        """What resumed from that state crashed again and again: the next trainer gets the one before."""
        if self.pid:
            self._avoid_step = step  # it still runs, and its gang is about to be ended
        else:
            self.unsettled = messages.TrainerExited(self.incarnation, False, step, self.task)
        suspected = Journal("state_suspected", self.task, self.incarnation, {"step": step})
        self._out += [Say(wording.going_back(step), is_bad=True), suspected]

    def _restart(self, delay_s: float, now_s: float) -> None:
        self.restart_s = now_s + delay_s
        fields = wording.restarting_fields(delay_s, self.lost_steps, self._recycled or self._lost_why)
        self._out.append(Journal("restarting", self.task, self.incarnation, fields))
        keeps_state = self._keeps_state and not self._model_outlives_it and not self.protection.serves
        keeper, keeps_state = self._keeper, keeps_state or self.gang_size > 0
        memory_step, durable_step = keeper.snapshots.memory_step, keeper.durable_step
        text = wording.starting_again(delay_s, memory_step, durable_step, keeps_state=keeps_state, count=self.gang_size)
        if self._lost_why:
            return  # of which it was said
        untold, self._untold = self._untold, ""
        self._out.append(Say(f"{untold}; {text}" if untold else text, is_bad=bool(untold)))

    def _give_up(self, why: str, now_s: float) -> None:
        self._tell_end()
        self.gave_up = why
        # On a terminal the program's own output, with its traceback, is right above.
        traceback = self.last_words.traceback if self.last_words and self._is_detached else ""
        self._out.append(Journal("gave_up", self.task, self.incarnation, {"why": why}))
        if not self._observes:  # else nothing more was to be expected
            self._out.append(Say(f"gave up: {why}", is_bad=True, traceback=traceback))
        self._handle(LifecycleEvent.GAVE_UP, now_s, why)
