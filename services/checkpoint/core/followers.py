"""Tell the followers, the tasks beside the chief, which state to start from.

Part of the core (core.py).  Pure.  The tasks of a gang must begin with the same state.  So each
follower waits until the chief has an answer, and gets the same one.  A follower reads the chief's
slot directly, or fetches it from another machine, some time after the answer.  So it is never
offered a slot that the chief may write to by then.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from procsv.base.identity import TaskId
from procsv.ipc.messaging.checkpoint_messages import RestoreFrom
from procsv.ipc.messaging.endpoint import Received
from procsv.services.checkpoint.core.actions import Action, Offer, Reply
from procsv.services.checkpoint.core.states import States


class _Question(msgspec.Struct):
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
    answered_attempt: int = 0  # the chief's attempt that got it; 0: a follower got it on the chief's behalf
    ended: int = 0  # the newest attempt of the chief that has ended
    _asked: dict[TaskId, _Question] = msgspec.field(default_factory=dict)
    _answered: set[TaskId] = msgspec.field(default_factory=set)

    def take_question(self, asker: Received, durable_only: bool, fetches: bool = False) -> None:
        """Takes a task's question; it replaces the task's previous one."""
        self._asked[asker.task] = _Question(asker, durable_only, fetches)

    def chief_ended(self, incarnation: int) -> None:
        """Forgets the answer of a chief's attempt that has ended.

        This notice can arrive after the next attempt's question, and before a late question of the
        attempt that ended.
        """
        self.ended = max(self.ended, incarnation)
        if incarnation >= self.answered_attempt:
            # If this attempt asked this service, so will the next. If not, even the next one may have asked the
            # service before this one.
            self.may_have_missed = self.may_have_missed and self.answer is None
            self.answer, self.answered_attempt = None, 0
            self._answered.clear()

    def note_answer(self, asker: Received, body: RestoreFrom) -> None:
        """Keeps the answer that the chief, or a follower on its behalf, has got."""
        is_chiefs = asker.task == self.states.chief
        if is_chiefs and asker.incarnation <= self.ended:
            return  # its followers have ended with it; the next attempt may get another state
        if body.error:
            self.answer, self.answered_attempt = None, 0
        else:
            self.answer, self.answered_attempt = body, asker.incarnation if is_chiefs else 0

    @property
    def waits_for_missed(self) -> Received | None:
        """A follower that may wait in vain, because only the previous service knew the chief's answer."""
        if not self.may_have_missed or self.answer is not None:
            return None
        return next((question.asker for question in self._asked.values()), None)

    def answer_questions(self) -> list[Action]:
        answers = [(task, self._answer(question.durable_only)) for task, question in self._asked.items()]
        self._answered.update(task for task, body in answers if body is not None)
        return [self._asked.pop(task).answered(body) for task, body in answers if body is not None]

    def still_need(self, path: str) -> bool:
        """Whether some followers have yet to start from this slot.

        If it were freed, they would wait for a checkpoint of this state and read it from the disk.
        """
        answer = self.answer
        is_answer = answer is not None and answer.source == "memory" and answer.path == path
        return is_answer and not self._has_moved_on and len(self._answered) < self.expected

    @property
    def _has_moved_on(self) -> bool:
        """Whether the chief has trained since its answer, and may reuse the slot in that answer."""
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
