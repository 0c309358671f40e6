"""Journal lines of the processes of a run: their attempts, their sessions, their hangs, and what follows an end.

Listed in journal_lines.py.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from procsv.report.published.line import Line, Pid, Seconds, Source, Step


class Spawned(Line, frozen=True, kw_only=True, tag="spawned"):
    """A process was started."""

    pid: Pid


class Ready(Line, frozen=True, kw_only=True, tag="ready"):
    """The first step after the restore has ended."""

    step: Step


class Recovered(Line, frozen=True, kw_only=True, tag="recovered"):
    """The state from which a start went on."""

    step: Step
    source: Source
    origin: str = field(name="from")
    seconds: Seconds
    lost_steps: Annotated[int, Meta(ge=0)] | UnsetType = UNSET


class Exited(Line, frozen=True, kw_only=True, tag="exited"):
    """A process has ended."""

    pid: Pid
    code: int | None
    signal: str | None
    cause: str
    evidence: str
    step: Step | UnsetType = UNSET


class Restarting(Line, frozen=True, kw_only=True, tag="restarting"):
    """The program is started again."""

    delay: Seconds
    lost_steps: Annotated[int, Meta(ge=0)]
    lost_seconds: Seconds | UnsetType = UNSET  # of training since the last save, of a program without a step counter
    why: str | UnsetType = UNSET


class Promoted(Line, frozen=True, kw_only=True, tag="promoted"):
    """A standby has become the trainer."""

    pid: Pid
    standby: int


class StandbyReady(Line, frozen=True, kw_only=True, tag="standby_ready"):
    """A standby has imported what the program imports."""

    pid: Pid
    modules: int
    seconds: Seconds


class ServiceRestarted(Line, frozen=True, kw_only=True, tag="service_restarted"):
    """A service was started again."""

    pid: Pid


class HangDetected(Line, frozen=True, kw_only=True, tag="hang_detected"):
    """A process makes no progress."""

    phase: str
    seconds: Seconds
    step: Step


class HangSuspected(Line, frozen=True, kw_only=True, tag="hang_suspected"):
    """A program without a session does nothing; it is left alone."""

    phase: str
    seconds: Seconds
    step: Step


class HangOver(Line, frozen=True, kw_only=True, tag="hang_over"):
    """A program that hung, and was not ended, goes on."""

    seconds: Seconds
    step: Step


class Frozen(Line, frozen=True, kw_only=True, tag="frozen"):
    """A signal had stopped the program, and it goes on."""

    seconds: Seconds
    step: Step


class SessionLost(Line, frozen=True, kw_only=True, tag="session_lost"):
    """A monitored session has lost its connection."""

    error: str
    step: Step


class SessionRecovered(Line, frozen=True, kw_only=True, tag="session_recovered"):
    """A monitored session was made anew in the same process."""

    step: Step
    source: Source
    origin: str = field(name="from")
    at: Step
    seconds: Seconds
    lost_steps: Annotated[int, Meta(ge=0)]


class GangFormed(Line, frozen=True, kw_only=True, tag="gang_formed"):
    """All tasks of a gang have ended their first step together."""

    generation: Annotated[int, Meta(ge=1)]
    step: Step
    seconds: Seconds


class FitBegun(Line, frozen=True, kw_only=True, tag="fit_begun"):
    """A fit of a Keras model begins."""

    fit: Annotated[int, Meta(ge=1)]
    model: str
    epochs: int
    how: str


class Unprotected(Line, frozen=True, kw_only=True, tag="unprotected"):
    """The program has no session, so nothing of it is saved."""

    seconds: Seconds


class NotRestored(Line, frozen=True, kw_only=True, tag="not_restored"):
    """The program has restored nothing of what had been saved, and began from the beginning."""

    step: Step  # of what was saved


class StateSuspected(Line, frozen=True, kw_only=True, tag="state_suspected"):
    """What resumed from this state crashed repeatedly."""

    step: Step


class TaskGivenUp(Line, frozen=True, kw_only=True, tag="task_given_up"):
    """A task is not started again in this launch, and the run goes on without it."""

    why: str
    workers: Annotated[int, Meta(ge=0)]  # that have not been given up
