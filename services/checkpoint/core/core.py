"""Decide what to save and when, what a new trainer starts from, and whom to notify.

The service's main loop (process.py) calls the core with an event and performs the actions that it
returns.  The core has no clock, file or socket: time is an argument, and it knows slots and files
only from events.  Its parts are pure, too:

    states.py           track the states in memory and on disk
    save_scheduler.py   decide when and why to save; back off after failures
    pending_replies.py  answer the peers that wait for a state to be on disk
    restore_choice.py   choose the state that a trainer starts from; give other tasks the same one
    directory.py        decide when to scan the checkpoint directory, and what to adopt there

This module passes each event to the parts that need it, and puts the actions of all parts into one
list.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from procsv.base.errors import ProcsvBug
from procsv.base.identity import TaskId
from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.checkpoint_messages import (
    CheckpointPlan,
    Durable,
    Rejected,
    Restore,
    Restored,
    RestoreFrom,
    SaveFailed,
    Snapshot,
    Staged,
    UserSave,
)
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.messages import Ack
from procsv.ipc.messaging.watchdog_messages import TrainerExited
from procsv.ipc.shm.slot_state import SlotInfo, SlotState
from procsv.services.checkpoint.core.actions import (
    Acknowledge,
    Action,
    Announce,
    Release,
    RemoveStaged,
    Reply,
    Retire,
)
from procsv.services.checkpoint.core.directory import Directory
from procsv.services.checkpoint.core.facts import (
    AdoptionResult,
    DiskState,
    FoundCheckpoint,
    SavableState,
    Scan,
    Verified,
)
from procsv.services.checkpoint.core.pending_replies import PendingReplies
from procsv.services.checkpoint.core.restore_choice import Followers, Restoring
from procsv.services.checkpoint.core.save_scheduler import Saving, as_reason
from procsv.services.checkpoint.core.states import States


class CheckpointCore:
    """Receives every event and returns the actions that follow from it."""

    def __init__(
        self,
        run: str,
        chief: TaskId,
        lineage: frozenset[str] = frozenset(),
        is_restarted: bool = False,
        followers: int = 0,
        *,
        is_local: bool = True,
    ) -> None:
        """`chief`: the task whose state is saved.

        `lineage`: earlier runs of this logdir; their snapshots may be restored.  `followers`: how
        many other tasks may start from the same state.  `is_restarted`: this service replaces one
        that died.  So it saves the newest state at once, and announces the newest checkpoint again.
        `is_local`: False if the checkpoints are at a URL.  Then the service does not scan there for
        checkpoints of other writers.  But a file there may name an earlier run, which the service
        adds to `lineage`.
        """
        self.states = States(run=run, chief=chief, lineage=lineage, asks_directory=not is_local)
        self.saving = Saving()
        self.waiting = PendingReplies()
        self.restoring = Restoring(self.states)
        self.followers = Followers(states=self.states, expected=followers, may_have_missed=is_restarted)
        self.directory = Directory(self.states, can_scan=is_local)
        self.external_saves = self.directory.external_saves
        self.durable_count = 0
        self._has_predecessor = is_restarted
        self._is_restarted = is_restarted  # until `_reasons` has given this as a reason to save
        self._is_finishing = False
        self._out: list[Action] = []

    # -- slots ------------------------------------------------------------------------------------------------
    def slots_seen(self, slots: Iterable[SlotInfo]) -> None:
        """Notes the slots that exist now, in any state.

        process.py calls this before every other event.  It decides nothing.
        """
        self.states.see(slots)

    # -- messages ---------------------------------------------------------------------------------------------
    def handle_message(self, asker: Received, now_s: float) -> list[Action]:
        """Handles a message that process.py does not handle by itself."""
        match asker.body:
            case CheckpointPlan() as plan:
                self._on_plan(plan, now_s)
                self._out.append(Acknowledge(asker))
            case Snapshot(sequence, step, want):
                self.states.note_in_memory(
                    SavableState(
                        sequence=sequence, step=step, incarnation=asker.incarnation, run=self.states.run, slot=None
                    )
                )
                self._on_want(asker, sequence, step, want)
            case Staged(prefix, sequence, step, want):
                self.states.take_staged(
                    SavableState(
                        sequence=sequence,
                        step=step,
                        incarnation=asker.incarnation,
                        run=self.states.run,
                        slot=None,
                        staged=prefix,
                    )
                )
                self._on_want(asker, sequence, step, want)
            case UserSave(path) if self.directory.can_scan:
                self.external_saves.own_save_reported(asker, path)
            case Restore(durable_only, fetches) if asker.task != self.states.chief:
                self.followers.take_question(asker, durable_only, fetches)
            case Restore(durable_only):
                self.external_saves.note_writers_gone(False)
                self.restoring.take_question(asker, durable_only, self.directory.next_scan)
            case Restored():
                self.restoring.has_restored(asker.incarnation)
                self.states.restored(asker.incarnation)
                self.saving.cadence_from_s = now_s
                self._out += [Acknowledge(asker), Release()]
            case TrainerExited(incarnation, clean, avoid_step):
                self.followers.chief_ended(incarnation)
                self.waiting.trainer_ended(asker, incarnation, "final" if clean else "crash")
                self.restoring.trainer_ended(incarnation, clean, avoid_step, now_s)
                self.external_saves.note_writers_gone(True)
                self.saving.expedite_save()
            case UserSave():
                self._out.append(Acknowledge(asker))
            case Ack():
                pass
            case body:
                raise ProcsvBug(f"{type(body).__name__} has no handler")
        return self._decide(now_s)

    def finish_run(self, asker: Received | None, now_s: float) -> list[Action]:
        """Finishes the run (`asker` None: its watchdog is dead)."""
        self._is_finishing = True
        self.saving.failures = 0
        self.saving.expedite_save()
        self.waiting.run_ended(asker, "final" if asker is not None else "crash")
        self.directory.finish_adoption(now_s)
        return self._decide(now_s)

    def tick(self, now_s: float) -> list[Action]:
        """Decides again because time has passed."""
        return self._decide(now_s)

    def plan_seen(self, plan: CheckpointPlan, now_s: float) -> list[Action]:
        """Uses the CheckpointPlan in a snapshot's slot, or in the file that keeps the last plan.

        It holds until a trainer sends its own.  Does nothing if a plan is known already.
        """
        if self.directory.plan is None:
            self._on_plan(plan, now_s)
        return self._decide(now_s)

    def _on_plan(self, plan: CheckpointPlan, now_s: float) -> None:
        if plan == self.directory.plan:
            return
        if self.saving.cadence_from_s is None:
            self.saving.cadence_from_s = now_s
        self._out.append(self.directory.follow_plan(plan))

    def _on_want(self, asker: Received, sequence: int, step: int, want: str) -> None:
        """Notes whether a trainer wants this state saved now.  If not, the save interval decides.

        A request to save is not acknowledged now, but by the answer after the save.  If this
        process dies before, the trainer repeats the request.
        """
        reason = as_reason(want)
        if reason is None:
            self._out.append(Acknowledge(asker))
        else:
            self.waiting.want(asker, sequence, step, reason)
            self.saving.expedite_save()

    # -- results of jobs --------------------------------------------------------------------------------------
    def stocked(self, stock: DiskState, now_s: float) -> list[Action]:
        is_first = self.states.durable is None
        self.directory.stocked(stock)
        if self._has_predecessor and is_first and self.states.durable is not None:
            # The service that died saved this checkpoint, perhaps without announcing it.
            self._out.append(Announce(self.states.durable))
        return self._decide(now_s)

    def search_failed(self, error: str, now_s: float) -> list[Action]:
        """Handles a failed ListCheckpoints or Find: the directory could not be read."""
        if not self.directory.is_stocked:
            self.directory.not_stocked(now_s)
            self.saving.failures += 1
            self.saving.last_error = error
            self._out += self.waiting.answer_endings(self.states, self.saving, after_failure=True, is_disk_known=False)
        self._out += self.restoring.search_failed(error)
        return self._decide(now_s)

    def saved(self, durable: Durable, now_s: float) -> list[Action]:
        """Announces that the current save has succeeded."""
        self.restoring.saved(self.saving.state)
        self.saving.ended_well(now_s)
        self.states.saved(durable)
        self.durable_count += 1
        self._out.append(Announce(durable))
        return self._decide(now_s)

    def save_failed(self, error: str, now_s: float) -> list[Action]:
        """Announces that the current save has failed.  The last good checkpoint stays."""
        state = self.saving.save_failed(error, now_s)
        failed = SaveFailed(
            sequence=state.sequence,
            step=state.step,
            error=error,
            retry_in=self.saving.retry_s - now_s,
            incarnation=state.incarnation,
            run=state.run,
        )
        self._out += [Announce(failed), *self.waiting.fail(state, failed)]
        self.restoring.save_failed()
        self._out += self.waiting.answer_endings(
            self.states, self.saving, after_failure=True, is_adopting=self.directory.is_adopting(now_s)
        )
        return self._decide(now_s)

    def save_lost(self, state: SavableState, why: str, is_bad: bool, now_s: float) -> list[Action]:
        """Gives up saving a state that could not be read.

        Its slot holds a newer state by now, or (`is_bad`) is damaged.
        """
        self.saving.state_lost()
        return self._lose(state, why, is_bad, now_s)

    def verify_lost(self, state: SavableState, why: str, is_bad: bool, now_s: float) -> list[Action]:
        """Gives up verifying a state to restore, for the reasons that `save_lost` lists."""
        self.restoring.verify_ended(state)
        return self._lose(state, why, is_bad, now_s)

    def _lose(self, state: SavableState, why: str, is_bad: bool, now_s: float) -> list[Action]:
        if self.states.lose(state, is_bad):
            self._out.append(Announce(Rejected(state.name, why)))
            self.saving.last_error = why
        return self._decide(now_s)

    def slot_verified(self, state: SavableState, now_s: float) -> list[Action]:
        """Notes that a slot is good to restore from."""
        self.restoring.verified(state)
        return self._decide(now_s)

    def found(self, found: FoundCheckpoint, now_s: float) -> list[Action]:
        """Handles the result of a search for a checkpoint."""
        self._out += [Announce(rejected) for rejected in found.rejected]
        if self.restoring.found(found):
            self.states.searched(found)
        return self._decide(now_s)

    # -- checkpoints of other writers -------------------------------------------------------------------------
    def changed(self, now_s: float) -> list[Action]:
        """Handles a hint that the checkpoint directory may have changed."""
        self.external_saves.hint(now_s)
        return self._decide(now_s)

    def scanned(self, scan: Scan, now_s: float) -> list[Action]:
        """Handles the result of a scan of the directory."""
        self._out += self.directory.scanned(scan, now_s)
        if news := self.directory.take_trouble(scan.trouble):
            self._out += news
            self.saving.expedite_save()
        return self._decide(now_s)

    def scan_failed(self, error: str, now_s: float) -> list[Action]:
        return self.scanned(Scan((), None, error), now_s)

    def examined(self, examined: Verified, now_s: float) -> list[Action]:
        """Handles the result of examining an external checkpoint."""
        self._out += self.directory.examined(examined, now_s)
        return self._decide(now_s)

    def adopted(self, taken: AdoptionResult, now_s: float) -> list[Action]:
        """Handles the result of an adoption.

        The external checkpoint now has its manifest, or a later scan tries again.
        """
        self._out += self.directory.adopted(taken, now_s)
        return self._decide(now_s)

    # -- decisions --------------------------------------------------------------------------------------------
    def _decide(self, now_s: float) -> list[Action]:
        directory = self.directory
        self._out += directory.take_stock_again(now_s)
        self._out += self.waiting.satisfy(self.states, self.saving)
        self._out += self.restoring.verify_ahead()
        self._out += directory.scan_if_due(now_s)
        self._answer_followers(self.restoring.advance_question(directory.known_plan, directory.scans_done))
        self._begin_save(now_s)
        if self._is_finishing and directory.plan is None and self.states.unsaved is not None:
            self.saving.last_error = (
                self.saving.last_error or "no trainer has told the checkpoint service how to name checkpoints"
            )
            self._out += self.waiting.answer_endings(self.states, self.saving, is_hopeless=True)
        self._out += self.waiting.answer_endings(
            self.states,
            self.saving,
            is_adopting=self.directory.is_adopting(now_s),
            is_disk_known=directory.plan is None or directory.is_stocked,
        )
        self._out += _clear_away(self.states, self.saving.state, self.restoring, self.followers)
        out, self._out = self._out, []
        return out

    def _answer_followers(self, out: list[Action]) -> None:
        """Answers the tasks other than the chief.  `out`: the actions for the question under way."""
        for reply in out:
            if isinstance(reply, Reply) and isinstance(reply.body, RestoreFrom):
                self.followers.note_answer(reply.to, reply.body)
        self._out += [a for a in out if not isinstance(a, Reply) or a.to.task == self.states.chief]
        self._out += self.followers.answer_questions()
        if not self.restoring.is_asked and (asker := self.followers.waits_for_missed) is not None:
            # The service that died may have answered the chief, so the chief does not ask again.  Ask in its place: the
            # chief has restored the newest state and not trained since, or it will restore this state.  So the followers
            # get the same state.
            self.restoring.take_question(asker, durable_only=True, after_scan=0)

    def _begin_save(self, now_s: float) -> None:
        state, is_quiet = self.states.unsaved, self.restoring.is_quiet(now_s)
        if self.saving.current is not None or state is None or now_s < self.saving.retry_s:
            return
        if (plan := self.directory.known_plan) is None:
            return  # no trainer has sent a plan yet, or the checkpoints on disk are not listed yet
        reason = self.saving.why(self._reasons(state), plan, self._is_finishing, now_s)
        if is_quiet and self._may_wait(state, reason):
            # Wait, so that the save does not slow down the restore.  If this process is killed meanwhile, the slot stays,
            # and the next service saves its state.
            return
        if reason is not None:
            self._out.append(self.saving.start_save(state, reason, plan))

    def _may_wait(self, state: SavableState, reason: Reason | None) -> bool:
        """Whether the save of `state` may wait for a new trainer's restore.

        It may if a crash is the only reason to save, and a new trainer can take the state from
        memory.
        """
        return reason == "crash" and state.slot is not None and not self._is_finishing

    def _reasons(self, state: SavableState) -> list[Reason]:
        """Returns the reasons to save `state` now, apart from the save interval."""
        reasons = self.waiting.reasons
        if self.restoring.is_asked or state.run != self.states.run or state.incarnation < self.restoring.restored:
            reasons.append("crash")  # left by a dead trainer
        if self._is_restarted:
            self._is_restarted = False
            reasons.append("periodic")
        return reasons

    def next_due_s(self) -> float:
        """Returns the monotonic time at which to decide again, even without another event."""
        save_s = self.saving.next_due_s(self.directory.plan) if self.states.unsaved is not None else math.inf
        quiet_until_s = self.restoring.quiet_until_s
        return min(self.directory.next_due_s(), math.inf if quiet_until_s is None else quiet_until_s, save_s)


def _clear_away(states: States, busy: SavableState | None, restoring: Restoring, followers: Followers) -> list[Action]:
    """Removes slots of earlier trainers, and staged files, that no process needs.

    `busy`: the state being saved.
    """
    idle = (info for info in states.slots if busy is None or busy.slot != info)
    retired: list[Action] = [Retire(info) for info in idle if not _is_needed(info, states, restoring, followers)]
    return [*retired, *(RemoveStaged(state) for state in states.take_superseded(busy))]


def _is_needed(info: SlotInfo, states: States, restoring: Restoring, followers: Followers) -> bool:
    """Whether a slot must stay.

    It must if it belongs to the present trainer, if its state is not on disk, or if a process may
    still restore from it.  If the checkpoints are at a URL, a slot of an unknown run stays until the
    checkpoints there are listed: a file there may name that run as an earlier run of this logdir.
    """
    if not states.is_ours(info.run):
        return states.asks_directory
    # In this run, the slots of the last attempt that has restored a state, and of later attempts, are the present
    # trainer's.  Until an attempt of this run has restored one, the slots of earlier runs stay, too.
    is_present = info.incarnation >= restoring.restored if info.run == states.run else not restoring.restored
    is_unsaved = info.state is SlotState.READY and not states.is_saved(info.run, info.incarnation, info.sequence)
    return (
        is_present
        or is_unsaved
        or restoring.is_asked
        or str(info.path) == restoring.served
        or followers.still_need(str(info.path))
    )
