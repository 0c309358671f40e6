"""Facts about machines for their invariants, in addition to each machine's own facts (history.py)."""

from __future__ import annotations

import msgspec

from procsv.base.identity import TaskId
from procsv.ipc.messaging.message import Message


class Ordered(msgspec.Struct, frozen=True):
    """A member executes a coordinator's order."""

    machine: str
    scheduler: str  # its start of the job
    term: int
    run: str  # the coordinator's run
    order: Message


class Given(msgspec.Struct, frozen=True):
    """A coordinator gives an order, whether or not the member can be reached now."""

    run: str
    machine: str
    order: Message


class TermWritten(msgspec.Struct, frozen=True):
    run: str
    number: int
    replaced: str  # the run whose term had that number, or ""


class LeaseTaken(msgspec.Struct, frozen=True):
    run: str


class LeaseLeft(msgspec.Struct, frozen=True):
    """It has released the logdir without writing anything there."""

    run: str


class Opened(msgspec.Struct, frozen=True):
    """That run's checkpoint service has removed unfinished files and watches the logdir from now on."""

    run: str


class Changed(msgspec.Struct, frozen=True):
    """That run has changed a file of the checkpoints."""

    run: str
    path: str


class Formed(msgspec.Struct, frozen=True):
    """All launches of a run have joined."""

    scheduler: str
    run: str
    term: int
    launches: tuple[tuple[TaskId, int, str], ...]  # task or spare's name; its launch's rank; its machine


class Moving(msgspec.Struct, frozen=True):
    """A run ends to restart at once: which launches get which tasks, and which were lost."""

    scheduler: str
    run: str
    places: tuple[tuple[TaskId, int], ...]  # task and rank of its launch; spares by name
    lost: tuple[int, ...]  # ranks


class ClockSeen(msgspec.Struct, frozen=True):
    """The coordinator has compared a member's clock with its own."""

    machine: str
    error_s: float  # the error; positive: the member's moments seem later than they were
    delay_s: float  # the message's delay


class CoordinatorEnds(msgspec.Struct, frozen=True):
    """It tells all members that it has not lost how to end."""

    scheduler: str
    run: str
    exit_code: int
    moves: bool
    told: tuple[int, ...]  # ranks
    is_stopped: bool  # before its end


class ToldEnd(msgspec.Struct, frozen=True):
    """A member learns how the run has ended."""

    scheduler: str
    rank: int
    exit_code: int


class Disturbed(msgspec.Struct, frozen=True):
    """A fault acts for that long from now. It may be over at once."""

    seconds: float


class MachineLost(msgspec.Struct, frozen=True):
    """A machine is lost with its memory, which the invariants can still read now."""

    machine: str


class Copied(msgspec.Struct, frozen=True):
    """A machine has another one's snapshot and takes it for whole."""

    machine: str
    run: str
    sequence: int
    step: int
    value: int
    seconds: float  # its time in transit


class Left(msgspec.Struct, frozen=True):
    """A launch has ended by itself."""

    scheduler: str
    rank: int
    exit_code: int
    again: bool  # it restarts with the same or another task
    why: str


Fact = (
    Ordered
    | Given
    | TermWritten
    | LeaseTaken
    | LeaseLeft
    | Opened
    | Changed
    | Formed
    | Moving
    | ClockSeen
    | CoordinatorEnds
    | ToldEnd
    | Disturbed
    | MachineLost
    | Copied
    | Left
)
