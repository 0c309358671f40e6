"""Messages between two processes of a run: the envelope, and the bodies that it may hold.

Pure data, encoded by codec.py.  The bodies are declared beside this file, by who talks with whom.  To add one, add a class with its
contract there, and let its sender send it and its receiver handle it; docs/messages.md is made from these files by scripts/docs.

A message with `seq` > 0 in its envelope is *reliable*: its sender repeats it until the receiver acknowledges it with Ack
or an answer (envelope `re`), so a receiver may see it twice and drops what it has already handled.  A message with `seq`
0 is sent once and may be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

import msgspec

from procsv.base.identity import TaskId
from procsv.ipc.messaging import (  # noqa: F401  their classes are bodies
    checkpoint_messages,
    member_messages,
    summary_messages,
    watchdog_messages,
)
from procsv.ipc.messaging.message import ANY, PROGRAM, SERVICE, WATCHDOG, Contract, Message

# A peer of another protocol is refused, with both numbers in the error.  Raise it when a field changes its meaning or goes, so
# that a service of another version, left by an upgrade in a running logdir, is not misunderstood; not for a new message.
PROTOCOL = 3


class Ack(Message, frozen=True):
    """Acknowledges the reliable message that the envelope's `re` names, once it has taken effect."""

    contract = Contract(ANY, ANY, is_reliable=False)


class Hello(Message, frozen=True):
    """Introduces a process: the first message on a new connection.

    A service sends its news (Durable, SaveFailed, …) to every peer that has said Hello.
    """

    contract = Contract(PROGRAM | WATCHDOG, WATCHDOG | SERVICE)

    pid: int


if TYPE_CHECKING:
    Body = Message
else:  # the decoder tells the classes apart by their names
    Body = Union[tuple(Message.__subclasses__())]  # noqa: UP007  there is no other way to spell a union of a list


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What every message travels in."""

    protocol: int
    run: str  # run id; a message of another run is dropped and counted
    task: TaskId  # the sender
    incarnation: int  # of the sender
    seq: int  # > 0: reliable, rising by one per sender and receiver
    re: int  # the seq that this answers or acknowledges; 0 if none
    body: Body
