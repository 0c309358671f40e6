"""Define the base class of all messages, and the contract that each message class declares.

A contract says who sends the message to whom, what answers it, and whether it is reliable.
endpoint.py checks it at both ends, and scripts/docs prints it.  The message classes are in
messages.py and the files beside it.
"""

from __future__ import annotations

import functools
from typing import ClassVar

import msgspec

from procsv.base.identity import TaskId
from procsv.base.service_table import SERVICES, ServiceSpec

Parties = frozenset[str]

PROGRAM: Parties = frozenset({"program"})  # every process that runs the user's program
SERVICE: Parties = frozenset({"service"})  # every service
STATE_SERVICE: Parties = frozenset({"state service"})  # services with `keeps_state` in the service table
EVENT_SERVICE: Parties = frozenset({"event service"})  # services with `takes_events`
CHECKPOINT: Parties = frozenset({"checkpoint"})
SUMMARY: Parties = frozenset({"summary"})
WATCHDOG: Parties = frozenset({"watchdog"})
COMMAND_LINE: Parties = frozenset({"cli"})
MEMBER: Parties = frozenset({"member"})  # the watchdog of another machine
ANY = PROGRAM | SERVICE | WATCHDOG | COMMAND_LINE | MEMBER


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base class of all message bodies."""

    contract: ClassVar[Contract]


class Contract(msgspec.Struct, frozen=True):
    """Who may send and receive a message, and what answers it.

    The sender repeats a reliable message until an answer or an Ack comes.  Any other message may be
    lost.
    """

    senders: Parties
    receivers: Parties
    answers: tuple[type[Message], ...] = ()  # a reliable message may get an Ack instead
    is_reliable: bool = True

    def may_be_sent_by(self, task: TaskId) -> bool:
        return not self.senders.isdisjoint(parties_of(task))

    def may_be_sent_to(self, task: TaskId) -> bool:
        return not self.receivers.isdisjoint(parties_of(task))


@functools.cache  # called twice for each message, at each end
def _parties_of_service(spec: ServiceSpec) -> Parties:
    state, events = (
        STATE_SERVICE if spec.keeps_state else frozenset(),
        EVENT_SERVICE if spec.takes_events else frozenset(),
    )
    return SERVICE | {spec.task.role} | state | events


def parties_of(task: TaskId) -> Parties:
    """Returns the parties that `task` belongs to."""
    if task.runs_program:
        return PROGRAM
    spec = SERVICES.get(task)
    return frozenset({task.role}) if spec is None else _parties_of_service(spec)
