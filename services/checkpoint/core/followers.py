"""Followers: the tasks beside the chief that ask what to start from.

Part of the core (core.py).  Pure.  Tasks that train in step have to begin with the same state, so they get what the chief has been
told, and nothing before that.  They write nothing: the memory that they map, or fetch from another machine, is the chief's, and
what it may fill anew, or has filled since, is not for them.
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
    """Their open questions, and what the chief that runs was told."""

    states: States
    expected: int = 0  # so many may ask after each start of the chief
    has_missed: bool = False  # what the chief that runs was told: a service before this one has told it
    told: RestoreFrom | None = None
    told_to: int = 0  # the attempt of the chief that was told; 0: one of them, in its place
    _asked: dict[TaskId, _Question] = msgspec.field(default_factory=dict)
    _answered: set[TaskId] = msgspec.field(default_factory=set)

    def take_question(self, asker: Received, durable_only: bool, fetches: bool = False) -> None:
        """A new question of a task replaces the one before."""
        self._asked[asker.task] = _Question(asker, durable_only, fetches)

    def chief_ended(self, incarnation: int) -> None:
        """That attempt of the chief is dead, and what it was told of no use; the news may come after the next one has asked."""
        if incarnation >= self.told_to:
            # This service has told nobody yet: the news may have been for the one before it, which told the next attempt as well.
            self.has_missed = self.has_missed and self.told is None
            self.told, self.told_to = None, 0
            self._answered.clear()

    def chief_told(self, asker: Received, body: RestoreFrom) -> None:
        if body.error:
            self.told, self.told_to = None, 0
        else:
            self.told, self.told_to = body, asker.incarnation if asker.task == self.states.chief else 0

    @property
    def left_alone(self) -> Received | None:
        """One that waits for what the chief may have been told before this service was there."""
        if not self.has_missed or self.told is not None:
            return None
        return next((question.asker for question in self._asked.values()), None)

    def answer_questions(self) -> list[Action]:
        answers = [(task, self._answer(question.durable_only)) for task, question in self._asked.items()]
        self._answered.update(task for task, body in answers if body is not None)
        return [self._asked.pop(task).answered(body) for task, body in answers if body is not None]

    def need(self, path: str) -> bool:
        """Whether the slot is what some are still to start from: they have it in milliseconds, and the checkpoint in seconds."""
        told = self.told
        is_told = told is not None and told.source == "memory" and told.path == path
        return is_told and not self._has_moved_on and len(self._answered) < self.expected

    @property
    def _has_moved_on(self) -> bool:
        """Whether the chief has trained since, and may fill the memory that it was told of anew."""
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
        return None if told.source == "memory" else told  # what was in memory is being saved
