"""Journal lines of a run: its launches, its end, and what it stands on.

Listed in journal_lines.py.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from procsv.report.published.line import Line, Pid, Seconds, Step


class RunStarted(Line, frozen=True, kw_only=True, tag="run_started"):
    """A watchdog has taken the logdir."""

    run: str
    pid: Pid
    target: str
    args: tuple[str, ...]
    logdir: str
    first_incarnation: int
    tasks: tuple[str, ...] | UnsetType = UNSET
    hosts: dict[str, str] | UnsetType = UNSET
    spare_hosts: list[str] | UnsetType = UNSET
    seen_until: Seconds | None
    asked_at: Seconds | None


class LeaseTakenOver(Line, frozen=True, kw_only=True, tag="lease_taken_over"):
    """Another machine's run had this logdir, and had not renewed its lease."""

    host: str
    pid: Pid
    run: str
    since: Seconds


class LogdirAdopted(Line, frozen=True, kw_only=True, tag="logdir_adopted"):
    """The program has named its directory: checkpoints and events go there from now on."""

    logdir: str


class PreemptNotice(Line, frozen=True, kw_only=True, tag="preempt_notice"):
    """The machine is about to be taken away."""

    grace: Seconds
    source: str


class Fault(Line, frozen=True, kw_only=True, tag="fault"):
    """A fault of the plan is about to happen."""

    fault: str
    step: Step


class FaultSkipped(Line, frozen=True, kw_only=True, tag="fault_skipped"):
    """A fault of the plan was due, and cannot be had where it is for."""

    fault: str
    why: str


class GroundLost(Line, frozen=True, kw_only=True, tag="ground_lost"):
    """Something that the run stands on was removed or replaced."""

    what: str
    path: str


class GroundRestored(Line, frozen=True, kw_only=True, tag="ground_restored"):
    """It was made anew."""

    what: str
    path: str
    seconds: Seconds


class GaveUp(Line, frozen=True, kw_only=True, tag="gave_up"):
    """The run has ended for good."""

    why: str


class Stopped(Line, frozen=True, kw_only=True, tag="stopped"):
    """The run was stopped; the same command resumes it."""

    step: Step
    durable_step: Step
    source: str


class RunCompleted(Line, frozen=True, kw_only=True, tag="run_completed"):
    """The program has come to its end."""

    step: Step
    goodput: Annotated[float, Meta(ge=0, le=1)]
