"""Choose the state that a trainer restores, and tell the other tasks to start from the same one.

Part of the core (core.py).  Pure.  A trainer gets the newest state.  If memory and disk both hold
it, the trainer gets it from memory.  The slot's checksums, or the checkpoint's files, are verified
before the answer.  If checkpoints exist but all are unusable, the answer is an error, never "start
from step 0".

The *followers* are the tasks beside the chief.  In a gang they must begin with the chief's state.
So each follower waits until the chief has an answer, and gets the same answer.  Some time after the
answer, the follower reads the chief's slot directly, or fetches it from another machine.  So the
core never offers a slot that the chief may overwrite by then.
"""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from procsv.base.identity import TaskId
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, RestoreFrom
from procsv.ipc.messaging.endpoint import Received
from procsv.services.checkpoint.core.actions import Action, Find, Offer, Reply, VerifySlot
from procsv.services.checkpoint.core.facts import FoundCheckpoint, SavableState
from procsv.services.checkpoint.core.states import States

# If a trainer cannot take its state from memory, it waits for a save.  After this many failed saves, it gets an older
# checkpoint.
TRIES_FOR_RESTORE_MAX = 3

# A dead trainer's state in memory is written once the next trainer has restored it, so that processors and memory
# bandwidth first serve to verify and restore it.  The write waits no longer than this after the death.  That is enough
# for a standby.  A cold start takes longer, and until the write a power failure would lose the state.
QUIET_S_MAX = 1.0


class _Question(msgspec.Struct):
    asker: Received
    durable_only: bool
    after_scan: int  # number of the scan that must end before the answer, since it shows the program's last saves
    stage: str = "waiting"  # waiting, verifying, searching
    saves_failed: int = 0
    searched: FoundCheckpoint | None = None


class Restoring(msgspec.Struct):
    """The trainer's open question, and the slots that were verified to answer it."""

    states: States
    expects_question: bool = True  # a trainer will soon ask what to start from, so prepare the answer
    restored: int = 0  # highest incarnation of this run that has sent Restored
    avoid_step: int = -1  # states of this step and later are suspect; prefer an older one
    served: str = ""  # the slot that a trainer is restoring from
    quiet_until_s: float = math.inf  # when to start writing a crashed trainer's state; inf: no delay
    _question: _Question | None = None
    _searched_at: int = 0  # the durable sequence when the search began
    _verified: SavableState | None = None  # the last slot whose checksums were right
    _verifying: set[SavableState] = msgspec.field(default_factory=set)

    @property
    def is_asked(self) -> bool:
        return self._question is not None

    # -- events -----------------------------------------------------------------------------------------------
    def take_question(self, asker: Received, durable_only: bool, after_scan: int) -> None:
        """Takes a question.

        It replaces an open question: the program may have rebuilt its session.
        """
        self._question, self.served = _Question(asker=asker, durable_only=durable_only, after_scan=after_scan), ""
        if durable_only:
            self.quiet_until_s = math.inf  # the asker waits for the write

    def has_restored(self, incarnation: int) -> None:
        self.restored, self.served = max(self.restored, incarnation), ""
        self.quiet_until_s = math.inf

    def trainer_ended(self, incarnation: int, clean: bool, avoid_step: int, now_s: float) -> None:
        """Drops the question of the attempt that has ended.

        The next attempt may get another answer, and its followers must not get this one.
        """
        asker = self._question.asker if self._question is not None else None
        if asker is not None and (asker.task != self.states.chief or asker.incarnation <= incarnation):
            self._question = None
        self.served, self.expects_question = "", not clean
        self.avoid_step = avoid_step
        # If several trainers die in a row, the delay is counted from the first death, so that it ends.
        self.quiet_until_s = math.inf if clean else min(self.quiet_until_s, now_s + QUIET_S_MAX)

    def is_quiet(self, now_s: float) -> bool:
        """Whether to delay writing a crashed trainer's state."""
        if now_s >= self.quiet_until_s:
            self.quiet_until_s = math.inf
        return self.quiet_until_s < math.inf

    def saved(self, state: SavableState | None) -> None:
        """Notes a save.

        The save also verified the slot, and its checkpoint outdates a search that has ended.
        """
        if state is not None and state.slot is not None:
            self._verified = state
        if self._question is not None:
            self._question.searched = None

    def save_failed(self) -> None:
        if self._question is not None:
            self._question.saves_failed += 1

    def verified(self, state: SavableState) -> None:
        """Notes a verified slot.

        It answers the question if the slot still holds the state to restore.
        """
        self._verified = state
        self.verify_ended(state)

    def verify_ended(self, state: SavableState) -> None:
        self._verifying.discard(state)
        self._back_to_waiting("verifying")

    def found(self, found: FoundCheckpoint) -> bool:
        """Takes the result of a search; returns False if a save has outdated the result."""
        if self._searched_at != self.states.durable_sequence:
            self._back_to_waiting("searching")
            return False
        if self._question is not None and self._question.stage == "searching":
            self._question.stage, self._question.searched = "waiting", found
        return True

    def search_failed(self, error: str) -> list[Action]:
        """Answers the question with an error, because the directory could not be read.

        It never answers with a fresh start.
        """
        if self._question is None or self._question.stage not in ("waiting", "searching"):
            return []
        return [self._answer("checkpoint", "", -1, f"the checkpoints cannot be read: {error}")]

    def _back_to_waiting(self, stage: str) -> None:
        if self._question is not None and self._question.stage == stage:
            self._question.stage = "waiting"

    # -- decisions --------------------------------------------------------------------------------------------
    def verify_ahead(self) -> list[Action]:
        """Verifies the slot that a trainer will ask for, before the trainer asks.

        Does so after a trainer's death and at this service's start.
        """
        slot = self.states.newest_slot if self.expects_question else None
        self.expects_question = False
        return self._check(slot) if slot is not None else []

    def _check(self, slot: SavableState) -> list[Action]:
        """Asks for verification of a slot; does nothing if it is verified or being verified."""
        if slot == self._verified or slot in self._verifying:
            return []
        self._verifying.add(slot)
        return [VerifySlot(slot)]

    def advance_question(self, plan: CheckpointPlan | None, scans: float) -> list[Action]:
        """Takes the next step towards an answer.

        `plan`: None while the checkpoints on disk are unknown.
        """
        asked, states = self._question, self.states
        if asked is None or asked.stage != "waiting" or plan is None or scans < asked.after_scan:
            return []
        slot, staged = states.newest_slot, states.newest_staged
        if self.avoid_step >= 0:
            return self._go_back(asked, plan, scans)
        newer_staged = staged is not None and (slot is None or staged.sequence > slot.sequence)
        if asked.durable_only or (newer_staged and states.unsaved is staged):
            if states.unsaved is not None and asked.saves_failed < TRIES_FOR_RESTORE_MAX:
                return []  # wait until it is saved as a checkpoint
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
        """Answers with a checkpoint from before the suspect state.

        If there is none, answers with the newest state.
        """
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


class _FollowerQuestion(msgspec.Struct):
    asker: Received
    durable_only: bool
    fetches: bool  # the asker is on another machine

    def answered(self, body: RestoreFrom) -> Action:
        is_offered = self.fetches and body.source == "memory"
        return Offer(self.asker, body) if is_offered else Reply(self.asker, body)


class Followers(msgspec.Struct):
    """The followers' open questions, and the answer that the running chief got."""

    states: States
    expected: int = 0  # how many may ask after each start of the chief
    may_have_missed: bool = False  # a service before this one may have answered the running chief
    answer: RestoreFrom | None = None  # the chief's answer
    answered_attempt: int = 0  # the chief's attempt that got `answer`; 0: a follower got it on the chief's behalf
    ended: int = 0  # the newest attempt of the chief that has ended
    _asked: dict[TaskId, _FollowerQuestion] = msgspec.field(default_factory=dict)
    _answered: set[TaskId] = msgspec.field(default_factory=set)

    def take_question(self, asker: Received, durable_only: bool, fetches: bool = False) -> None:
        """Takes a task's question; it replaces the task's previous one."""
        self._asked[asker.task] = _FollowerQuestion(asker, durable_only, fetches)

    def chief_ended(self, incarnation: int) -> None:
        """Forgets the answer of an attempt of the chief that has ended.

        The notice of its end can arrive after the next attempt's question.  It can also arrive
        before a late question of the ended attempt.
        """
        self.ended = max(self.ended, incarnation)
        if incarnation >= self.answered_attempt:
            # If the ended attempt asked this service, the next attempt will ask it, too.  If it did not, the next
            # attempt may have asked the previous service already.
            self.may_have_missed = self.may_have_missed and self.answer is None
            self.answer, self.answered_attempt = None, 0
            self._answered.clear()

    def note_answer(self, asker: Received, body: RestoreFrom) -> None:
        """Keeps the answer that the chief got, or that a follower got on its behalf."""
        is_chiefs = asker.task == self.states.chief
        if is_chiefs and asker.incarnation <= self.ended:
            return  # its followers have ended with it; the next attempt may get another state
        if body.error:
            self.answer, self.answered_attempt = None, 0
        else:
            self.answer, self.answered_attempt = body, asker.incarnation if is_chiefs else 0

    @property
    def waits_for_missed(self) -> Received | None:
        """A follower's question that may otherwise wait in vain; None if there is none.

        It waits in vain if only the previous service knew the chief's answer.
        """
        if not self.may_have_missed or self.answer is not None:
            return None
        return next((question.asker for question in self._asked.values()), None)

    def answer_questions(self) -> list[Action]:
        answers = [(task, self._answer(question.durable_only)) for task, question in self._asked.items()]
        self._answered.update(task for task, body in answers if body is not None)
        return [self._asked.pop(task).answered(body) for task, body in answers if body is not None]

    def still_need(self, path: str) -> bool:
        """Whether some followers may still start from this slot.

        If the slot were freed, they would wait for a checkpoint of its state, and read that from
        the disk.
        """
        answer = self.answer
        is_answer = answer is not None and answer.source == "memory" and answer.path == path
        return is_answer and not self._has_moved_on and len(self._answered) < self.expected

    @property
    def _has_moved_on(self) -> bool:
        """Whether the chief has trained since `answer`, and so may overwrite the slot in it."""
        return self.answer is not None and self.states.newest_sequence > self.answer.sequence

    def _answer(self, durable_only: bool) -> RestoreFrom | None:
        answer = self.answer
        if answer is None:
            return None
        if not self._has_moved_on and not (durable_only and answer.source == "memory"):
            return answer
        durable = self.states.durable
        if durable is not None and durable.step >= answer.step:
            return replace(answer, source="checkpoint", path=durable.path, step=durable.step)
        return None if answer.source == "memory" else answer  # the state in memory is being saved; wait for that
