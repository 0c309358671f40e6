"""Contract of a message: who sends it to whom, what answers it, and whether it is reliable.

Declared by every class in messages.py, checked by endpoint.py on both ends, and printed by scripts/docs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from procsv.base.identity import TaskId
    from procsv.ipc.messaging.messages import Message

Parties = frozenset[str]

PROGRAM: Parties = frozenset({"program"})  # every process that runs the user's program
SERVICE: Parties = frozenset({"service"})  # every service
CHECKPOINT: Parties = frozenset({"checkpoint"})
SUMMARY: Parties = frozenset({"summary"})
WATCHDOG: Parties = frozenset({"watchdog"})
COMMAND_LINE: Parties = frozenset({"cli"})
ANY = PROGRAM | SERVICE | WATCHDOG | COMMAND_LINE


@dataclass(frozen=True, slots=True)
class Contract:
    """A reliable message is sent again until an answer or an Ack comes; one that is not may be lost."""

    senders: Parties
    receivers: Parties
    answers: tuple[type[Message], ...] = ()  # besides the Ack of a reliable message
    is_reliable: bool = True

    def may_be_sent_by(self, task: TaskId) -> bool:
        return not self.senders.isdisjoint(parties_of(task))

    def may_be_sent_to(self, task: TaskId) -> bool:
        return not self.receivers.isdisjoint(parties_of(task))


def parties_of(task: TaskId) -> Parties:
    """The party that `task` is, and the kind that it belongs to."""
    if task.runs_program:
        return PROGRAM
    own = frozenset({task.role})
    return own if own <= ANY else own | SERVICE
