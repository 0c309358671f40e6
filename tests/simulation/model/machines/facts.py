"""Facts about machines for their invariants, in addition to each machine's own facts (history.py)."""

from __future__ import annotations

import msgspec

from procsv.base.identity import TaskId
from procsv.ipc.messaging.message import Message


class Ordered(msgspec.Struct, frozen=True):
    """A member carries out what a coordinator has ordered."""

    machine: str
    scheduler: str  # which start of the job it is of
    term: int
    run: str  # the coordinator's
    order: Message


class Given(msgspec.Struct, frozen=True):
    """A coordinator gives an order, whether or not there is a way to the member now."""

    run: str
    machine: str
    order: Message


class TermWritten(msgspec.Struct, frozen=True):
    run: str
    number: int
    replaced: str  # the run whose term had that number; "" if none had


class LeaseTaken(msgspec.Struct, frozen=True):
    run: str


class LeaseLeft(msgspec.Struct, frozen=True):
    """It has let go of the logdir without having written anything there."""

    run: str


class Opened(msgspec.Struct, frozen=True):
    """The checkpoint service of that run has swept what was there in the making, and looks at the logdir from now on."""

    run: str


class Changed(msgspec.Struct, frozen=True):
    """That run has changed a file of the checkpoints."""

    run: str
    path: str


class Formed(msgspec.Struct, frozen=True):
    """All launches of a run have come."""

    scheduler: str
    run: str
    term: int
    launches: tuple[tuple[TaskId, int, str], ...]  # task, or name of a spare one; rank of its launch; machine


class Moving(msgspec.Struct, frozen=True):
    """A run ends, to begin again at once: which launches are to have which tasks, and those that were lost."""

    scheduler: str
    run: str
    places: tuple[tuple[TaskId, int], ...]  # task, rank of the launch; spares by their names
    lost: tuple[int, ...]  # ranks


class ClockSeen(msgspec.Struct, frozen=True):
    """The coordinator has put a member's clock beside its own."""

    machine: str
    error_s: float  # of what it thinks; positive: the member's moments seem later than they were
    delay_s: float  # that the message took


class CoordinatorEnds(msgspec.Struct, frozen=True):
    """It tells all members that it has not lost how they are to end."""

    scheduler: str
    run: str
    exit_code: int
    moves: bool
    told: tuple[int, ...]  # ranks
    is_stopped: bool  # before its end


class ToldEnd(msgspec.Struct, frozen=True):
    """A member hears how the run has ended."""

    scheduler: str
    rank: int
    exit_code: int


class Disturbed(msgspec.Struct, frozen=True):
    """A fault is at work, from now on for so long; it may be over at once."""

    seconds: float


class MachineLost(msgspec.Struct, frozen=True):
    """With all that is in its memory, which can still be read now."""

    machine: str


class Copied(msgspec.Struct, frozen=True):
    """A machine has a snapshot of another one's, and takes it for whole."""

    machine: str
    run: str
    sequence: int
    step: int
    value: int
    seconds: float  # that it travelled


class Left(msgspec.Struct, frozen=True):
    """A launch has come to its end by itself."""

    scheduler: str
    rank: int
    exit_code: int
    again: bool  # it begins again, with another task or the same
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
