"""Tell the followers, the tasks beside the chief, which state to start from.

Part of the core (core.py).  Pure.  Tasks that train in step must begin with the same state.  So each
follower gets the chief's answer, and waits until the chief has one.  Followers write nothing: they
map the chief's memory, or fetch it from another machine.  A slot that the chief has reused, or may
reuse, is therefore never offered to them.
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
    fetches: bool  # it is on another machine

    def answered(self, body: RestoreFrom) -> Action:
        is_offered = self.fetches and body.source == "memory"
        return Offer(self.asker, body) if is_offered else Reply(self.asker, body)


class Followers(msgspec.Struct):
    """The followers' open questions, and the answer that the running chief got."""

    states: States
    expected: int = 0  # how many may ask after each start of the chief
    has_missed: bool = False  # an earlier service may have answered the running chief
    told: RestoreFrom | None = None  # the chief's answer
    told_to: int = 0  # the attempt of the chief that got it; 0: a follower got it on the chief's behalf
    ended: int = 0  # the newest attempt of the chief that has ended
    _asked: dict[TaskId, _Question] = msgspec.field(default_factory=dict)
    _answered: set[TaskId] = msgspec.field(default_factory=set)

    def take_question(self, asker: Received, durable_only: bool, fetches: bool = False) -> None:
        """Takes a task's question; it replaces the task's previous one."""
        self._asked[asker.task] = _Question(asker, durable_only, fetches)

    def chief_ended(self, incarnation: int) -> None:
        """Forgets the answer of a chief's attempt that has ended.

        The news may come after the next attempt has asked, and before a question of the dead one.
        """
        self.ended = max(self.ended, incarnation)
        if incarnation >= self.told_to:
            # If this service has told nobody, the previous service may have told the next attempt as well.
            self.has_missed = self.has_missed and self.told is None
            self.told, self.told_to = None, 0
            self._answered.clear()

    def chief_told(self, asker: Received, body: RestoreFrom) -> None:
        is_chiefs = asker.task == self.states.chief
        if is_chiefs and asker.incarnation <= self.ended:
            return  # its followers have ended with it; the next attempt may get another state
        if body.error:
            self.told, self.told_to = None, 0
        else:
            self.told, self.told_to = body, asker.incarnation if is_chiefs else 0

    @property
    def left_alone(self) -> Received | None:
        """A follower that waits for an answer which the chief may have got before this service started."""
        if not self.has_missed or self.told is not None:
            return None
        return next((question.asker for question in self._asked.values()), None)

    def answer_questions(self) -> list[Action]:
        answers = [(task, self._answer(question.durable_only)) for task, question in self._asked.items()]
        self._answered.update(task for task, body in answers if body is not None)
        return [self._asked.pop(task).answered(body) for task, body in answers if body is not None]

    def need(self, path: str) -> bool:
        """Whether some followers have yet to start from this slot.

        They read a slot in milliseconds, and a checkpoint in seconds.
        """
        told = self.told
        is_told = told is not None and told.source == "memory" and told.path == path
        return is_told and not self._has_moved_on and len(self._answered) < self.expected

    @property
    def _has_moved_on(self) -> bool:
        """Whether the chief has trained since its answer, and may reuse the slot in that answer."""
        return self.told is not None and self.states.newest_sequence > self.told.sequence

    def _answer(self, durable_only: bool) -> RestoreFrom | None:
        told = self.told
        if told is None:
            return None
        if not self._has_moved_on and not (durable_only and told.source == "memory"):
            return told
        durable = self.states.durable
        if durable is not None and durable.step >= told.step:
            return replace(told, source="checkpoint", path=durable.path, step=durable.step)
        return None if told.source == "memory" else told  # a state in memory is being saved; wait for that
