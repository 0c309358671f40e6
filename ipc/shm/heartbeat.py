"""Heartbeats as plain data: a process's phase, step and progress.  heartbeat_file.py writes and reads them."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

from procsv.base.outcome import FitPlace, Loss

NOT_RETURNED = -1  # as `returned`
LOOP_AT_DISK = 2**64 - 1  # as `moved`: the main loop is blocked on disk I/O


class Phase(IntEnum):
    """What a process is doing; each phase has its own deadline."""

    IMPORT = 0
    CONNECT = 1
    RESTORE = 2
    COMPILE = 3  # from the restored session to the end of the first step
    STEP = 4
    SAVE = 5
    STOP = 6
    IDLE = 7  # a service with nothing to do
    SERVE = 8  # variables to other processes (a parameter server), for as long as they want
    PROGRAM = 9  # the program's own code: callbacks, evaluations, between two trainings, after the last one


class Spacing(IntEnum):
    """What decides how far apart a trainer's snapshots are."""

    NONE = 0  # there are none: nothing is saved
    OFF = 1  # none by time
    TOLD = 2  # a fixed interval
    AUTO_LEAST = 3  # auto: they cost so little that the least interval will do
    AUTO_COST = 4  # auto: as far apart as their cost demands
    AUTO_MOST = 5  # auto: the longest there is, whatever they cost
    CHECKPOINTS = 6  # one for each checkpoint


class SnapshotStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How often snapshots are taken, and what they cost."""

    spacing: str
    interval: Annotated[float, msgspec.Meta(description="seconds; 0: none by time")]
    apart: Annotated[
        float,
        msgspec.Meta(
            description="seconds until the next is due; less where a copy on another machine is to be there within the interval"
        ),
    ]
    why: str
    taken: int
    stall_ms: float
    mean_stall_ms: float
    mean_cost_ms: float
    share: float


class Snapshots(msgspec.Struct, frozen=True):
    """How a trainer spaces its snapshots, and what they cost the training thread (stall) and all in all."""

    spacing: Spacing = Spacing.NONE
    interval_s: float = 0.0  # 0.0: none by time
    taken: int = 0
    stall_s: float = 0.0  # of the last one
    mean_stall_s: float = 0.0  # weighted towards the newest, like the next
    mean_cost_s: float = 0.0
    apart_s: float = 0.0  # from one capture to when the next is due: less, where the interval is to end with a copy on another machine

    @property
    def share(self) -> float:
        """Of the training time, what snapshots cost at this interval."""
        return self.mean_cost_s / self.apart_s if self.apart_s else 0.0

    @property
    def why(self) -> str:
        """The choice, for people."""
        cost = f"one costs {self.mean_cost_s * 1e3:.1f} ms, {self.share:.2%} of the time"
        return {
            Spacing.NONE: "there are no snapshots",
            Spacing.OFF: "switched off",
            Spacing.TOLD: f"as told; {cost}",
            Spacing.AUTO_LEAST: f"auto: never closer; {cost}",
            Spacing.AUTO_COST: f"auto: so that they cost at most 1 %; {cost}",
            Spacing.AUTO_MOST: f"auto: never farther apart; {cost}",
            Spacing.CHECKPOINTS: f"one for each checkpoint; {cost}",
        }[self.spacing]

    def as_status(self) -> SnapshotStatus | None:
        """What `procsv status --json` shows; None: there are none."""
        if self.spacing is Spacing.NONE:
            return None
        return SnapshotStatus(
            spacing=self.spacing.name.lower().partition("_")[0],
            interval=round(self.interval_s, 3),
            apart=round(self.apart_s, 3),
            why=self.why,
            taken=self.taken,
            stall_ms=round(self.stall_s * 1e3, 3),
            mean_stall_ms=round(self.mean_stall_s * 1e3, 3),
            mean_cost_ms=round(self.mean_cost_s * 1e3, 3),
            share=round(self.share, 6),
        )


class Heartbeat(msgspec.Struct, frozen=True):
    phase: Phase
    step: int  # global step as last read; -1 before the first reading
    work: int  # what it has got done: runs of the session, durable checkpoints, records written
    beat_s: float  # monotonic time of the last writing
    extended_s: float  # monotonic deadline that procsv.extend() has pushed out; 0.0 if none
    snapshots: Snapshots = Snapshots()  # of a trainer
    refused: int = 0  # messages that were not fit to be heard (a service's; it has a socket of its own)
    moved: int = 0  # how far the jobs that a service has have come; of a task, the steps of its own.  0: none, or none that could say
    fit: FitPlace | None = None  # of a trainer that fits a Keras model
    in_step: bool = (
        True  # in phase STEP: whether a step is certainly under way, and not the program's own code between two
    )
    returned: int = NOT_RETURNED  # exit code of a program whose main module has run to its end
    handles: int = 0  # the signals that a program has a handler of its own for: bit N is signal N
    loss: Loss | None = None  # of that fit, as of its newest snapshot
    importing: str = ""  # the package whose import takes its time
