"""Choose the state that a trainer restores, and tell the other tasks to start from the same one.

Part of the core (core.py).  Pure.  Normally a trainer gets the newest state.  If memory and disk
both hold it, the trainer gets it from memory.  There are two exceptions.  If the newest state is
suspect, the trainer gets an older checkpoint, if there is one.  A trainer that can restore only
from disk waits until the newest state is saved.  The slot's checksums, or the checkpoint's files,
are verified before the answer.  If checkpoints exist but all are unusable, the answer is an error,
never "start from step 0".

The *followers* are the tasks other than the chief.  In a gang they must begin with the chief's
state.  So each follower waits until the chief has an answer, and gets the same answer.  A follower
reads the chief's slot, or fetches it from another machine, only some time after the answer.  So the
core never offers a slot that the chief might overwrite in the meantime.  If the chief has trained
since its answer, or if the follower can restore only from disk, the follower gets a checkpoint of
this state or of a later one.  The watchdog restarts a gang whose tasks begin at different steps.
"""

from __future__ import annotations

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

# After a crash, the newest state may be only in memory.  The service starts to write it to disk only when the next
# trainer has restored it, so that the write does not compete with the restore for CPU and memory bandwidth.  But the
# write waits at most this long, because until then a power failure would lose the state.  A trainer that was forked
# from a standby has restored by then.  A trainer that starts cold takes longer, and is not waited for.
QUIET_S_MAX = 1.0


class _Question(msgspec.Struct):
    asker: Received
    durable_only: bool
    after_scan: int  # wait for the directory scan with this number, which includes what the program saved last
    stage: str = "waiting"  # waiting, verifying, searching
    saves_failed: int = 0
    searched: FoundCheckpoint | None = None


class Restoring(msgspec.Struct):
    """The trainer's open question, and the slots that were verified to answer it."""

    states: States
    expects_question: bool = True  # a trainer will soon ask what to start from, so prepare the answer
    restored: int = 0  # highest incarnation of this run that has sent Restored
    avoid_step: int = -1  # states of this step and later are suspect, so prefer an older one; -1: no state is suspect
    served: str = ""  # the slot that a trainer is restoring from
    quiet_until_s: float | None = None  # when to start writing a crashed trainer's state; None: no delay
    _question: _Question | None = None
    _searched_at: int = 0  # `states.durable_sequence` when the search began; a save changes it
    _verified: SavableState | None = None  # the last slot whose checksums were right
    _verifying: set[SavableState] = msgspec.field(default_factory=set)

    @property
    def is_asked(self) -> bool:
        return self._question is not None

    # -- events -----------------------------------------------------------------------------------------------
    def take_question(self, asker: Received, durable_only: bool, after_scan: int) -> None:
        """Take a question.

        It replaces an open question, because the program may have rebuilt its session.
        """
        self._question, self.served = _Question(asker=asker, durable_only=durable_only, after_scan=after_scan), ""
        if durable_only:
            self.quiet_until_s = None  # the asker waits for the write, so do not delay it

    def has_restored(self, incarnation: int) -> None:
        self.restored, self.served = max(self.restored, incarnation), ""
        self.quiet_until_s = None

    def trainer_ended(self, incarnation: int, clean: bool, avoid_step: int, now_s: float) -> None:
        """An attempt of the chief has ended: drop its question, and expect the next attempt's.

        Also drop a question that the core asks for a follower (`Followers.waits_for_missed`),
        because the gang has ended with the chief.  The next attempt may get another answer.  After a
        crash, delay the write of the newest state (see QUIET_S_MAX).
        """
        asker = self._question.asker if self._question is not None else None
        if asker is not None and (asker.task != self.states.chief or asker.incarnation <= incarnation):
            self._question = None
        self.served, self.expects_question = "", not clean
        self.avoid_step = avoid_step
        if clean:
            self.quiet_until_s = None
        elif self.quiet_until_s is None:  # if several trainers die in a row, the first death counts, so the delay ends
            self.quiet_until_s = now_s + QUIET_S_MAX

    def is_quiet(self, now_s: float) -> bool:
        """Whether to delay writing a crashed trainer's state."""
        if self.quiet_until_s is not None and now_s >= self.quiet_until_s:
            self.quiet_until_s = None
        return self.quiet_until_s is not None

    def saved(self, state: SavableState | None) -> None:
        """Note a save.

        The save has also verified the slot.  A search that ended before the save did not see the
        new checkpoint, so drop its result.
        """
        if state is not None and state.slot is not None:
            self._verified = state
        if self._question is not None:
            self._question.searched = None

    def save_failed(self) -> None:
        if self._question is not None:
            self._question.saves_failed += 1

    def verified(self, state: SavableState) -> None:
        """Note that a slot's checksums are right, so that `advance_question` can answer with it."""
        self._verified = state
        self.verify_ended(state)

    def verify_ended(self, state: SavableState) -> None:
        self._verifying.discard(state)
        self._back_to_waiting("verifying")

    def found(self, found: FoundCheckpoint) -> bool:
        """Take the result of a search; return False if a save has made the result obsolete."""
        if self._searched_at != self.states.durable_sequence:
            self._back_to_waiting("searching")
            return False
        if self._question is not None and self._question.stage == "searching":
            self._question.stage, self._question.searched = "waiting", found
        return True

    def search_failed(self, error: str) -> list[Action]:
        """Answer the question with an error, because the directory could not be read.

        Never answer with a fresh start.
        """
        if self._question is None or self._question.stage not in ("waiting", "searching"):
            return []
        return [self._answer("checkpoint", "", -1, f"the checkpoints cannot be read: {error}")]

    def _back_to_waiting(self, stage: str) -> None:
        if self._question is not None and self._question.stage == stage:
            self._question.stage = "waiting"

    # -- decisions --------------------------------------------------------------------------------------------
    def verify_ahead(self) -> list[Action]:
        """Verify the slot that a trainer will ask for, before the trainer asks.

        This happens after a trainer's death and at this service's start.
        """
        slot = self.states.newest_slot if self.expects_question else None
        self.expects_question = False
        return self._check(slot) if slot is not None else []

    def _check(self, slot: SavableState) -> list[Action]:
        """Have a slot verified, unless it is verified or being verified."""
        if slot == self._verified or slot in self._verifying:
            return []
        self._verifying.add(slot)
        return [VerifySlot(slot)]

    def advance_question(self, plan: CheckpointPlan | None, scans: float) -> list[Action]:
        """Take the next step towards an answer.

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
        if slot is not None and not states.has_newer_checkpoint(slot):
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
        """Answer with a checkpoint from before the suspect state.

        If there is none, answer with the newest state.
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
    """The followers' open questions, and the answer that the running chief got.

    Each time the chief starts, it asks which state to restore, and so do its followers, before or
    after it.  A follower's question waits here until the chief has its answer (`note_answer`).  The
    follower gets the same answer, or a checkpoint of this state or of a later one (`_answer`).
    When that attempt of the chief ends, its answer is forgotten (`chief_ended`), because the next
    attempt may get another one.

    If this service process replaces one that died, it may not know the running chief's answer: the
    chief may have got it from the previous process, and will not ask again.  Then the followers
    would wait forever.  So the core asks in the chief's place, with a follower as the asker
    (`waits_for_missed`), and only for a state on disk.  The result counts as the chief's answer.
    """

    states: States
    expected: int = 0  # how many may ask after each start of the chief
    may_have_missed: bool = False  # the previous service process may have answered the running chief
    answer: RestoreFrom | None = None  # the chief's answer
    answered_attempt: int = 0  # the chief's attempt that got `answer`; 0: none, or the core asked in the chief's place
    ended: int = 0  # the newest attempt of the chief that has ended
    _asked: dict[TaskId, _FollowerQuestion] = msgspec.field(default_factory=dict)
    _answered: set[TaskId] = msgspec.field(default_factory=set)

    def take_question(self, asker: Received, durable_only: bool, fetches: bool = False) -> None:
        """Take a follower's question; it replaces the follower's previous one."""
        self._asked[asker.task] = _FollowerQuestion(asker, durable_only, fetches)

    def chief_ended(self, incarnation: int) -> None:
        """An attempt of the chief has ended: forget the answer that it got.

        The notice of its end can arrive late, after the next attempt's question.  It can also
        arrive early, before a question of the ended attempt.
        """
        self.ended = max(self.ended, incarnation)
        if incarnation >= self.answered_attempt:
            # If this process answered the ended attempt, it also hears the next one's question, and misses no answer
            # any more.  If it did not, the notice of the end may be late: the next attempt may be running already, with
            # an answer from the previous process.
            self.may_have_missed = self.may_have_missed and self.answer is None
            self.answer, self.answered_attempt = None, 0
            self._answered.clear()

    def note_answer(self, asker: Received, body: RestoreFrom) -> None:
        """Keep the answer that the chief got, or that the core got in the chief's place."""
        is_chiefs = asker.task == self.states.chief
        if is_chiefs and asker.incarnation <= self.ended:
            return  # its followers have ended with it; the next attempt may get another state
        if body.error:
            self.answer, self.answered_attempt = None, 0
        else:
            self.answer, self.answered_attempt = body, asker.incarnation if is_chiefs else 0

    @property
    def waits_for_missed(self) -> Received | None:
        """A follower that may wait for an answer that only the previous service process knew.

        The caller asks in the chief's place, with this follower as the asker.  None if no follower
        waits, or if this process has answered the chief.
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
        return None if answer.source == "memory" else answer  # None: the state in memory is being saved, so wait
