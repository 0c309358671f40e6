"""The history of a simulated world for the invariants: facts in the order in which they happen."""

from __future__ import annotations

from typing import Any

import msgspec

from procsv.base.identity import TaskId
from procsv.base.outcome import Exit
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.watchdog.core.actions import Action
from procsv.watchdog.core.events import Event


class Born(msgspec.Struct, frozen=True):
    task: TaskId
    incarnation: int
    pid: int


class Died(msgspec.Struct, frozen=True):
    """A process has died.

    `by` says what ended it: outside (a fault), watchdog, program (its own error), peer (its own
    error, because another task was gone), itself (it was done), power.
    """

    task: TaskId
    incarnation: int
    pid: int
    exit: Exit
    by: str
    was_orphan: bool  # the watchdog was dead
    was_stuck: bool  # it hung, or was stopped for ever


class SpawnAsked(msgspec.Struct, frozen=True):
    """The watchdog's core requests a process."""

    task: TaskId
    incarnation: int


class Wrote(msgspec.Struct, frozen=True):
    """A trainer has changed something of the run, for example a slot."""

    pid: int
    incarnation: int


class Published(msgspec.Struct, frozen=True):
    """A chief has published a whole snapshot in shared memory."""

    run: str
    sequence: int
    step: int
    captured_s: float  # by its machine's clock


class Taken(msgspec.Struct, frozen=True):
    """A chief has captured a snapshot."""

    run: str
    incarnation: int
    sequence: int
    step: int
    value: int


class Counted(msgspec.Struct, frozen=True):
    """An attempt counts its snapshots up to `sequence` as saved because of a message."""

    run: str
    incarnation: int
    sequence: int
    path: str


class Acknowledged(msgspec.Struct, frozen=True):
    """A checkpoint was reported durable, and `task` has received that."""

    news: Durable
    task: TaskId


class Restored(msgspec.Struct, frozen=True):
    """A trainer has put a state into its session."""

    incarnation: int
    source: str
    path: str
    step: int
    value: int


class Filled(msgspec.Struct, frozen=True):
    """A chief has put a state into the run's servers."""

    incarnation: int
    living_step: int  # the step of the previous model; -1: there was none
    step: int


class Whole(msgspec.Struct, frozen=True):
    """A chief has put a whole state into the servers and knows it."""

    incarnation: int


class Joined(msgspec.Struct, frozen=True):
    """A task has joined the tasks that it trains in step with."""

    task: TaskId
    ring: int  # a number that rises each time they find each other
    older: tuple[str, ...]  # living members of an earlier ring


class Stepped(msgspec.Struct, frozen=True):
    """A task has made a step with the others of its ring."""

    task: TaskId
    ring: int
    state: tuple[int, int]  # step and value


class Refused(msgspec.Struct, frozen=True):
    """A trainer learned that nothing can be restored."""

    incarnation: int
    error: str


class Ready(msgspec.Struct, frozen=True):
    task: TaskId
    incarnation: int


class Finished(msgspec.Struct, frozen=True):
    """The program has reached its last step."""

    incarnation: int
    step: int
    value: int
    unwritten: int  # records that it gave up on


class Appended(msgspec.Struct, frozen=True):
    """Records were added to an event file."""

    file: str


class Journaled(msgspec.Struct, frozen=True):
    event: str
    task: TaskId
    incarnation: int
    fields: dict[str, Any]


class CoreActed(msgspec.Struct, frozen=True):
    """The watchdog's core received an event and wants this action."""

    event: Event
    actions: list[Action]


class Received(msgspec.Struct, frozen=True):
    """A server has accepted a message as news."""

    server: TaskId
    task: TaskId
    incarnation: int
    body: str


class Asked(msgspec.Struct, frozen=True):
    """`procsv status` was run and has its answer (None: none within the limit)."""

    seconds: float
    answer: dict[str, Any] | None


class LaunchEnded(msgspec.Struct, frozen=True):
    """`procsv launch` has exited, and all its processes have had time to go."""

    exit_code: int | None  # None: it was killed
    keep_memory: bool


Fact = (
    Born
    | Died
    | SpawnAsked
    | Wrote
    | Published
    | Taken
    | Counted
    | Acknowledged
    | Restored
    | Filled
    | Whole
    | Joined
    | Stepped
    | Refused
    | Ready
    | Finished
    | Appended
    | Journaled
    | CoreActed
    | Received
    | Asked
    | LaunchEnded
)
