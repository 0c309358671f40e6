"""Restore choice: the newest state there is, from memory rather than disk where both hold it.

Part of the core (core.py).  Pure.  A slot is chosen only after it was read against its checksums, a checkpoint only after it was
verified.  Never answers "start from step 0" where there are checkpoints that cannot be used.
"""

from __future__ import annotations

import math

import msgspec

from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, RestoreFrom
from procsv.ipc.messaging.endpoint import Received
from procsv.services.checkpoint.core.actions import Action, Find, Reply, VerifySlot
from procsv.services.checkpoint.core.facts import FoundCheckpoint, SavableState
from procsv.services.checkpoint.core.states import States

# A trainer that cannot take its state from memory waits for so many tries to save it, then gets an older checkpoint.
TRIES_FOR_RESTORE_MAX = 3

# What a dead trainer left lies in memory.  It is written once the next one has it: until then the processors and the
# memory are for checking it and for getting it back.  No longer than this after the death, which is enough for a standby:
# a cold start takes its time, and a machine that loses its power takes the memory with it.
QUIET_S_MAX = 1.0


class _Question(msgspec.Struct):
    asker: Received
    durable_only: bool
    after_scan: int  # the scan that has to end before the answer: what a user has just saved counts
    stage: str = "waiting"  # waiting, verifying, searching
    saves_failed: int = 0
    searched: FoundCheckpoint | None = None


class Restoring(msgspec.Struct):
    """The trainer's open question, and what has been verified for it."""

    states: States
    expects_question: bool = True  # a trainer is about to ask what to start from: the answer is prepared
    restored: int = 0  # highest incarnation of this run that has said Restored
    avoid_step: int = -1  # states of this step and later are suspect: an older one is answered with, if there is one
    served: str = ""  # the slot that a trainer was told to restore from, until it has
    quiet_until_s: float = math.inf  # until when a crash's state is not written yet; inf: it is
    _question: _Question | None = None
    _searched_at: int = 0  # the durable sequence when the search began
    _verified: SavableState | None = None  # the slot that was last read against its checksums, and good
    _verifying: set[SavableState] = msgspec.field(default_factory=set)

    @property
    def is_asked(self) -> bool:
        return self._question is not None

    # -- what happens -----------------------------------------------------------------------------------------
    def take_question(self, asker: Received, durable_only: bool, after_scan: int) -> None:
        """A new question (of a rebuilt session, say) replaces the one before."""
        self._question, self.served = _Question(asker=asker, durable_only=durable_only, after_scan=after_scan), ""
        if durable_only:
            self.quiet_until_s = math.inf  # it waits for what is to be written

    def has_restored(self, incarnation: int) -> None:
        self.restored, self.served = max(self.restored, incarnation), ""
        self.quiet_until_s = math.inf

    def trainer_ended(self, clean: bool, avoid_step: int, now_s: float) -> None:
        self.served, self.expects_question = "", not clean
        self.avoid_step = avoid_step
        # Of several that die one after the other the first counts: they cannot put it off for ever.
        self.quiet_until_s = math.inf if clean else min(self.quiet_until_s, now_s + QUIET_S_MAX)

    def is_quiet(self, now_s: float) -> bool:
        """Whether a crash's state is not to be written yet."""
        if now_s >= self.quiet_until_s:
            self.quiet_until_s = math.inf
        return self.quiet_until_s < math.inf

    def saved(self, state: SavableState | None) -> None:
        """A state was saved: its slot was verified on the way, and there is a newer checkpoint."""
        if state is not None and state.slot is not None:
            self._verified = state
        if self._question is not None:
            self._question.searched = None

    def save_failed(self) -> None:
        if self._question is not None:
            self._question.saves_failed += 1

    def verified(self, state: SavableState) -> None:
        """A slot may be restored from: answered, unless it is outdated in the meantime."""
        self._verified = state
        self.verify_ended(state)

    def verify_ended(self, state: SavableState) -> None:
        self._verifying.discard(state)
        self._back_to_waiting("verifying")

    def found(self, found: FoundCheckpoint) -> bool:
        """A search of the checkpoints has ended; False if a save has outdated it."""
        if self._searched_at != self.states.durable_sequence:
            self._back_to_waiting("searching")
            return False
        if self._question is not None and self._question.stage == "searching":
            self._question.stage, self._question.searched = "waiting", found
        return True

    def search_failed(self, error: str) -> list[Action]:
        """The directory could not be read: an error, never a fresh start."""
        if self._question is None or self._question.stage not in ("waiting", "searching"):
            return []
        return [self._answer("checkpoint", "", -1, f"the checkpoints cannot be read: {error}")]

    def _back_to_waiting(self, stage: str) -> None:
        if self._question is not None and self._question.stage == stage:
            self._question.stage = "waiting"

    # -- decisions --------------------------------------------------------------------------------------------
    def verify_ahead(self) -> list[Action]:
        """Verifies the slot that a trainer will ask for, after a death and at this service's start."""
        slot = self.states.newest_slot if self.expects_question else None
        self.expects_question = False
        return self._check(slot) if slot is not None else []

    def _check(self, slot: SavableState) -> list[Action]:
        """Asks to verify a slot, unless it was or is being verified."""
        if slot == self._verified or slot in self._verifying:
            return []
        self._verifying.add(slot)
        return [VerifySlot(slot)]

    def advance_question(self, plan: CheckpointPlan | None, scans: float) -> list[Action]:
        """Moves the trainer's question on.  `plan` None: what is on disk is not known yet."""
        asked, states = self._question, self.states
        if asked is None or asked.stage != "waiting" or plan is None or scans < asked.after_scan:
            return []
        slot, staged = states.newest_slot, states.newest_staged
        if self.avoid_step >= 0:
            return self._go_back(asked, plan, scans)
        newer_staged = staged is not None and (slot is None or staged.sequence > slot.sequence)
        if asked.durable_only or (newer_staged and states.unsaved is staged):
            if states.unsaved is not None and asked.saves_failed < TRIES_FOR_RESTORE_MAX:
                return []  # first it is saved; then it is a checkpoint
            slot = None
        if slot is not None and not states.is_behind(slot):
            if slot == self._verified:
                return [self._answer("memory", slot.name, slot.step, "")]
            asked.stage = "verifying"
            return self._check(slot)
        if asked.searched is None:
            asked.stage, self._searched_at = "searching", states.durable_sequence
            return [Find(plan)]
        if (good := asked.searched.checkpoint) is not None:
            return [self._answer("checkpoint", good.path, good.step, "")]
        error = asked.searched.error
        return [self._answer("checkpoint" if error else "fresh", "", -1, error)]

    def _go_back(self, asked: _Question, plan: CheckpointPlan, scans: float) -> list[Action]:
        """The newest state is suspect: a checkpoint before it, or, where there is none, that state after all."""
        if asked.searched is None:
            asked.stage, self._searched_at = "searching", self.states.durable_sequence
            return [Find(plan, self.avoid_step)]
        good, self.avoid_step = asked.searched.checkpoint, -1
        if good is not None:
            return [self._answer("checkpoint", good.path, good.step, "")]
        asked.searched = None
        return self.advance_question(plan, scans)

    def _answer(self, source: str, path: str, step: int, error: str) -> Action:
        assert self._question is not None, "an answer without a question"
        assert source in ("memory", "checkpoint", "fresh"), source
        asker, self._question = self._question.asker, None
        self.served = path if source == "memory" else ""
        states = self.states
        body = RestoreFrom(
            source=source,  # type: ignore[arg-type]
            path=path,
            step=step,
            sequence=states.top_sequence,
            all_paths=states.kept,
            error=error,
        )
        return Reply(asker, body)
