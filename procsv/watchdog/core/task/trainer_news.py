"""Read the news of the running trainer: its heartbeat and its messages.

Used by trainer.py. Pure. It passes news to the parts of the task that they concern, and returns
what these want with what the news is for the lifecycle.
"""

from __future__ import annotations

from procsv.base.errors import ProcsvBug
from procsv.base.journal import entries
from procsv.ipc.messaging import messages, watchdog_messages
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.actions import Action, WriteEntry
from procsv.watchdog.core.task.lifecycle import LifecycleEvent, Reaction
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
    """`of`: the task whose parts keep the news."""

    def __init__(self, of: TrainerFacts) -> None:
        self._of = of

    def read_beat(self, beat: Heartbeat) -> Reaction:
        """Read the heartbeat, of a running trainer or as a dead one left it."""
        if self._of.progress.read_beat(beat):
            self._of.history.served()
        news = self._of.protection.see(beat)
        return Reaction([news] if news else [], _PHASES.get(beat.phase))

    def said(self, body: messages.Body) -> Reaction:
        """Handle a message from the running trainer."""
        match body:
            case messages.Hello():
                self._of.was_connected = True
                return Reaction([], LifecycleEvent.HELLO)
            case watchdog_messages.FirstStepDone() as recovered:
                return Reaction(self._recovered(recovered), LifecycleEvent.READY)
            case watchdog_messages.Note(entries.PreemptNotice()) if self._of.stopping.is_told:
                pass  # it received our own signal
            case watchdog_messages.Note(entry):
                return Reaction(self._noted(entry))
            case watchdog_messages.AdoptLogdir() | watchdog_messages.TrainsInStep() | messages.Ack():
                pass  # conversation.py answers the first; the second is for the gang
            case watchdog_messages.Loaded():
                pass  # for its host
            case _:
                raise ProcsvBug(f"{type(body).__name__} has no handler")
        return Reaction([])

    def said_at_its_end(self, body: messages.Body) -> list[Action]:
        """Handle a message that it sent before its end, but that arrived after its end was seen.

        That happens if nothing was received for a while.
        """
        match body:
            case watchdog_messages.Note(entries.SnapshotFailed(is_last=True) as failed):
                return [self._journal(failed), *self._of.snapshots.failed(failed)]
        return []

    def _noted(self, entry: entries.Entry) -> list[Action]:
        noted: list[Action] = [self._journal(entry)]
        match entry:
            case entries.CheckpointsDeleted(kept=False):
                self._of.deletes_logdir = True
            case entries.SnapshotFailed():
                noted += self._of.snapshots.failed(entry)
            case entries.SnapshotsResumed(step=step):
                noted.append(self._of.snapshots.resumed(step))
        return noted

    def _journal(self, entry: entries.Entry) -> WriteEntry:
        return WriteEntry(entry, self._of.task, self._of.incarnation)

    def _recovered(self, recovered: watchdog_messages.FirstStepDone) -> list[Action]:
        of = self._of
        saved_step = max(of.progress.offered_step, of.progress.durable_step)
        of.progress.recovered(recovered)
        warned = of.protection.see_first_step(of.task, of.incarnation, recovered.habit, saved_step)
        of.hanging.liveness.see_session()
        of.history.ready(recovered.restored_step)
        return [*warned, *of.record.ready(of.incarnation, recovered)]
