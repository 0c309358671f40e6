"""Read the news of the running trainer, and watch whether it progresses.

Used by trainer.py. Pure. A trainer's heartbeats and messages go to the parts of the task that they
concern. The answer is a Reaction: the actions that these parts want, and the event, if any, for the
task's lifecycle.
"""

from __future__ import annotations

from dataclasses import dataclass

from procsv.base.errors import ProcsvBug
from procsv.base.identity import TaskId
from procsv.base.journal import entries
from procsv.ipc.messaging import messages, watchdog_messages
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.actions import Action, Say, WriteEntry
from procsv.watchdog.core.hangs.escalation import HangEscalation
from procsv.watchdog.core.hangs.trainer_liveness import Liveness
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.task.attempt_record import AttemptRecord
from procsv.watchdog.core.task.lifecycle import LIVE, LifecycleEvent, Reaction, TaskState
from procsv.watchdog.core.task.progress import TaskProgress
from procsv.watchdog.core.task.protection import Protection
from procsv.watchdog.core.task.trainer_facts import TrainerFacts

_PHASES = {
    Phase.IMPORT: LifecycleEvent.IMPORTS,
    Phase.CONNECT: LifecycleEvent.CONNECTS,
    Phase.SERVE: LifecycleEvent.CONNECTS,
    Phase.RESTORE: LifecycleEvent.RESTORES,
    Phase.COMPILE: LifecycleEvent.COMPILES,
    Phase.STEP: LifecycleEvent.STEPS,
}


class TrainerNews:
    """Hand heartbeats and messages to the parts of one task."""

    def __init__(self, facts: TrainerFacts) -> None:
        self._facts = facts

    def read_beat(self, beat: Heartbeat) -> Reaction:
        """Read the current heartbeat of a running trainer, or the last one of a dead trainer."""
        if self._facts.progress.read_beat(beat):
            self._facts.history.served()
        news = self._facts.protection.see(beat)
        return Reaction([news] if news else [], _PHASES.get(beat.phase))

    def said(self, body: messages.Body) -> Reaction:
        """Handle a message from the running trainer."""
        match body:
            case messages.Hello():
                self._facts.was_connected = True
                return Reaction([], LifecycleEvent.HELLO)
            case watchdog_messages.FirstStepDone() as recovered:
                return Reaction(self._recovered(recovered), LifecycleEvent.READY)
            case watchdog_messages.Note(entries.PreemptNotice()) if self._facts.stopping.is_told:
                pass  # the notice is the watchdog's own SIGTERM
            case watchdog_messages.Note(entry):
                return Reaction(self._noted(entry))
            case watchdog_messages.AdoptLogdir() | watchdog_messages.TrainsInStep() | messages.Ack():
                pass  # conversation.py answers AdoptLogdir; run.py passes TrainsInStep to the gang
            case watchdog_messages.Loaded():
                pass  # for the task's host
            case _:
                raise ProcsvBug(f"{type(body).__name__} has no handler")
        return Reaction([])

    def said_at_its_end(self, body: messages.Body) -> list[Action]:
        """Handle a message from a trainer that arrives after its end was seen.

        The trainer sent it before its end, but the watchdog did not read messages for a while.
        """
        match body:
            case watchdog_messages.Note(entries.SnapshotFailed(is_last=True) as failed):
                return [self._journal(failed), *self._facts.snapshots.failed(failed)]
        return []

    def _noted(self, entry: entries.Entry) -> list[Action]:
        noted: list[Action] = [self._journal(entry)]
        match entry:
            case entries.PreemptNotice():
                self._facts.got_notice = True
            case entries.CheckpointsDeleted(kept=False):
                self._facts.deletes_logdir = True
            case entries.SnapshotFailed():
                noted += self._facts.snapshots.failed(entry)
            case entries.SnapshotsResumed(step=step):
                noted.append(self._facts.snapshots.resumed(step))
        return noted

    def _journal(self, entry: entries.Entry) -> WriteEntry:
        return WriteEntry(entry, self._facts.task, self._facts.incarnation)

    def _recovered(self, recovered: watchdog_messages.FirstStepDone) -> list[Action]:
        facts = self._facts
        saved_step = max(facts.progress.offered_step, facts.progress.durable_step)
        facts.progress.recovered(recovered)
        warned = facts.protection.see_first_step(facts.task, facts.incarnation, recovered.habit, saved_step)
        facts.hanging.liveness.see_session()
        facts.history.ready(recovered.restored_step)
        return [*warned, *facts.record.ready(facts.incarnation, recovered)]


@dataclass(slots=True)
class TrainerWatch:
    """Watch whether a trainer makes progress.

    `observes`: procsv did not start the program, and does not end it for a hang.
    """

    task: TaskId
    hanging: HangEscalation[Liveness]
    protection: Protection
    progress: TaskProgress
    record: AttemptRecord
    observes: bool
    _stalled_s: float = 0.0  # how long an observed program had made no progress when it went on
    _is_suspected: bool = False  # a message has said that the program does nothing at all; it comes once

    def watch_trainer(
        self,
        state: TaskState,
        incarnation: int,
        beat: Heartbeat | None,
        is_stopped: bool,
        activity: int | None,
        now_s: float,
    ) -> Reaction:
        """Return the reports about the trainer's progress, and the event if it hangs or goes on.

        `activity`: a number that changes whenever one of the trainer's processes does anything;
        None if that was not checked.
        """
        wanted: list[Action] = []
        if is_stopped and state is TaskState.RUNNING:
            self.record.freeze(now_s)
        else:
            wanted += self.record.thaw(incarnation, now_s, is_running=state is TaskState.RUNNING)
        self.hanging.liveness.read_activity(activity, now_s)
        if self.hanging.is_found(beat, is_stopped, now_s):
            hang = self.hanging.hang
            if hang is not None and self.hanging.liveness.has_returned and not self.observes:
                wanted.append(Say(wording.lingers(hang.seconds)))
                # Its main module has returned. It now saves and ends with the program's exit code, or is killed.
                return Reaction(wanted, LifecycleEvent.RECYCLE_ASKED)
            return Reaction(wanted, LifecycleEvent.STALLS if self.observes else LifecycleEvent.HANGS)
        if (news := self.hanging.liveness.take_too_short()) is not None:
            wanted.append(Say(wording.limit_doubled(news)))
        if state is TaskState.STALLED and (seconds := self.hanging.goes_on(beat, now_s)) is not None:
            self._stalled_s = seconds
            return Reaction(wanted, LifecycleEvent.MOVES)
        if state in LIVE and not self.observes:
            wanted += self._watch_without_session(incarnation, now_s)
        return Reaction(wanted)

    def _watch_without_session(self, incarnation: int, now_s: float) -> list[Action]:
        """Report that a program without a session is not saved, or may hang.

        Such a program may not be training, so it is never ended for a hang.
        """
        wanted = self.protection.warn(self.task, incarnation, now_s) if self.progress.keeps_state else []
        hang = self.hanging.liveness.suspicion(now_s)
        if hang is not None and not self._is_suspected:
            self._is_suspected = True
            wanted += wording.does_nothing(self.task, incarnation, hang)
        return wanted

    def report_progress(self, incarnation: int) -> list[Action]:
        """Report that a stalled program makes progress again."""
        return list(wording.goes_on(self.task, incarnation, self._stalled_s, self.progress.own_step))
