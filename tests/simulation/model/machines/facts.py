"""What happens among machines, as their invariants read it; beside the facts of each machine (history.py)."""

from __future__ import annotations

from dataclasses import dataclass

from procsv.base.identity import TaskId
from procsv.ipc.messaging.messages import Message


@dataclass(frozen=True, slots=True)
class Ordered:
    """A member carries out what a coordinator has ordered."""

    machine: str
    scheduler: str  # which start of the job it is of
    term: int
    run: str  # the coordinator's
    order: Message


@dataclass(frozen=True, slots=True)
class Given:
    """A coordinator gives an order, whether or not there is a way to the member now."""

    run: str
    machine: str
    order: Message


@dataclass(frozen=True, slots=True)
class TermWritten:
    run: str
    number: int
    replaced: str  # the run whose term had that number; "" if none had


@dataclass(frozen=True, slots=True)
class LeaseTaken:
    run: str


@dataclass(frozen=True, slots=True)
class LeaseLeft:
    """It has let go of the logdir without having written anything there."""

    run: str


@dataclass(frozen=True, slots=True)
class Opened:
    """The checkpoint service of that run has swept what was there in the making, and looks at the logdir from now on."""

    run: str


@dataclass(frozen=True, slots=True)
class Changed:
    """That run has changed a file of the checkpoints."""

    run: str
    path: str


@dataclass(frozen=True, slots=True)
class Formed:
    """All launches of a run have come."""

    scheduler: str
    run: str
    term: int
    launches: tuple[tuple[TaskId, int, str], ...]  # task, or name of a spare one; rank of its launch; machine


@dataclass(frozen=True, slots=True)
class Moving:
    """A run ends, to begin again at once: which launches are to have which tasks, and those that were lost."""

    scheduler: str
    run: str
    places: tuple[tuple[TaskId, int], ...]  # task, rank of the launch; spares by their names
    lost: tuple[int, ...]  # ranks


@dataclass(frozen=True, slots=True)
class ClockSeen:
    """The coordinator has put a member's clock beside its own."""

    machine: str
    error_s: float  # of what it thinks; positive: the member's moments seem later than they were
    delay_s: float  # that the message took


@dataclass(frozen=True, slots=True)
class CoordinatorEnds:
    """It tells all members that it has not lost how they are to end."""

    scheduler: str
    run: str
    exit_code: int
    moves: bool
    told: tuple[int, ...]  # ranks


@dataclass(frozen=True, slots=True)
class ToldEnd:
    """A member hears how the run has ended."""

    scheduler: str
    rank: int
    exit_code: int


@dataclass(frozen=True, slots=True)
class Disturbed:
    """A fault is at work, from now on for so long; it may be over at once."""

    seconds: float


@dataclass(frozen=True, slots=True)
class MachineLost:
    """With all that is in its memory, which can still be read now."""

    machine: str


@dataclass(frozen=True, slots=True)
class Copied:
    """A machine has a snapshot of another one's, and takes it for whole."""

    machine: str
    run: str
    sequence: int
    step: int
    value: int
    seconds: float  # that it travelled


@dataclass(frozen=True, slots=True)
class CapturedHeld:
    """A chief has captured, having told the others to stand; by the time that all machines share."""

    task: TaskId
    begun_s: float
    ended_s: float
    is_mixed: bool
    why: str


@dataclass(frozen=True, slots=True)
class Stood:
    """A step has waited for so long, by the clock of its machine, which did not stand still meanwhile, because the task is held."""

    task: TaskId
    seconds: float


@dataclass(frozen=True, slots=True)
class Left:
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
    | CapturedHeld
    | Stood
    | Left
)
