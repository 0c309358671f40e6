"""Answer the peers that wait for a state to be on disk.

Part of the core (core.py).  Pure.  With a *wish*, a trainer asks to make one snapshot durable, and
names the reason.  With an *ending*, the watchdog asks to save what a dead trainer left, or to save
everything at the end of the run.
"""

from __future__ import annotations

import msgspec

from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.checkpoint_messages import SaveFailed
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.watchdog_messages import FlushDone
from procsv.services.checkpoint.core.actions import Reply
from procsv.services.checkpoint.core.facts import SavableState
from procsv.services.checkpoint.core.save_scheduler import Saving
from procsv.services.checkpoint.core.states import States

TRIES_AT_END_MAX = 3  # failed saves of the last state before the run reports the failure and ends


class _Want(msgspec.Struct, frozen=True):
    asker: Received
    sequence: int
    step: int
    reason: Reason


class _Ending(msgspec.Struct, frozen=True):
    """A request for FlushDone: after a trainer's death, or (`all_of_it`) at the end of the run."""

    asker: Received | None  # None: this service itself, because the watchdog is dead
    incarnation: int
    reason: Reason
    all_of_it: bool

    def is_about(self, state: SavableState | None) -> bool:
        return state is not None and (self.all_of_it or state.incarnation <= self.incarnation)


class PendingReplies(msgspec.Struct):
    """The open wishes and endings."""

    settled: bool = False  # the run is over and FlushDone has been sent
    _wants: list[_Want] = msgspec.field(default_factory=list)
    _endings: list[_Ending] = msgspec.field(default_factory=list)

    def want(self, asker: Received, sequence: int, step: int, reason: Reason) -> None:
        self._wants.append(_Want(asker, sequence, step, reason))

    def trainer_ended(self, asker: Received, incarnation: int, reason: Reason) -> None:
        self._endings.append(_Ending(asker, incarnation, reason, all_of_it=False))

    def run_ended(self, asker: Received | None, reason: Reason) -> None:
        self._endings.append(_Ending(asker, -1, reason, all_of_it=True))

    @property
    def reasons(self) -> list[Reason]:
        """The reasons to save the newest state."""
        return [want.reason for want in self._wants] + [ending.reason for ending in self._endings]

    def satisfy(self, states: States, saving: Saving) -> list[Reply]:
        """Answers wishes whose state, or a newer one, is on disk.

        Also answers wishes whose snapshot is gone.
        """
        if not self._wants:
            return []
        replies, newest = [], states.newest_sequence
        for want in list(self._wants):
            attempt = want.asker.incarnation
            if states.durable is not None and states.is_saved(states.run, attempt, want.sequence):
                replies.append(Reply(want.asker, states.durable))
            elif want.sequence > newest and saving.current is None:
                why = saving.last_error or "the snapshot is gone"
                failed = SaveFailed(
                    sequence=want.sequence,
                    step=want.step,
                    error=why,
                    retry_in=0.0,
                    incarnation=attempt,
                    run=states.run,
                )
                replies.append(Reply(want.asker, failed))
            else:
                continue
            self._wants.remove(want)
        return replies

    def fail(self, state: SavableState, failed: SaveFailed) -> list[Reply]:
        """Tells the peers that asked for `state`, or an older state, that its save has failed."""
        mine = [want for want in self._wants if want.sequence <= state.sequence]
        self._wants = [want for want in self._wants if want.sequence > state.sequence]
        return [Reply(want.asker, failed) for want in mine]

    def answer_endings(
        self,
        states: States,
        saving: Saving,
        after_failure: bool = False,
        is_adopting: bool = False,
        is_hopeless: bool = False,
        is_disk_known: bool = True,
    ) -> list[Reply]:
        """Answers the endings that no longer wait for a save.

        `after_failure`: a save, or the listing of the directory, has just failed.  `is_adopting`:
        external checkpoints are still being adopted, and the end of the run waits for them.
        `is_hopeless`: the state in memory will never be saved.  `is_disk_known`: False until the
        directory is listed.  Until then, two endings wait: an ending whose state is gone from
        memory, because it may be on disk after all; and the end of the run, because the listing
        also finishes or removes a save that a kill interrupted.
        """
        replies = []
        for ending in list(self._endings):
            mine, lost = ending.is_about(states.unsaved), ending.is_about(states.lost_state)
            open_yet = mine or saving.current is not None or ((lost or ending.all_of_it) and not is_disk_known)
            if open_yet and not is_hopeless and not (after_failure and _has_tried_enough(ending, saving.failures)):
                continue
            if ending.all_of_it and is_adopting:
                continue
            if ending.asker is not None:
                error = _why_lost(states) if lost else saving.last_error if mine else ""
                replies.append(Reply(ending.asker, FlushDone(states.durable_step, error)))
            self._endings.remove(ending)
            self.settled = self.settled or ending.all_of_it
        return replies


def _why_lost(states: States) -> str:
    assert states.lost_state is not None
    return f"step {states.lost_state.step} was only in memory, and is lost"


def _has_tried_enough(ending: _Ending, failures: int) -> bool:
    """Whether to answer although saves have failed.

    A trainer's ending is answered after the first failure, while the save is tried again.  The
    run's ending is answered after TRIES_AT_END_MAX failures.
    """
    return not ending.all_of_it or failures >= TRIES_AT_END_MAX
