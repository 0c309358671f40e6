"""Define heartbeats: the phase, step and progress that a process shows to the watchdog.

heartbeat_file.py writes and reads them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

from procsv.base.outcome import FitPlace, Loss

NOT_RETURNED = -1  # value of `returned`
LOOP_AT_DISK = 2**64 - 1  # value of `moved`: the service's main loop may be blocked on disk I/O


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
    SERVE = 8  # a parameter server serves variables to other processes
    PROGRAM = 9  # the program's own code: callbacks, evaluations, between and after trainings


class Spacing(IntEnum):
    """The rule that sets the interval between a trainer's snapshots."""

    NONE = 0  # no snapshots: nothing is saved
    OFF = 1  # no periodic snapshots
    TOLD = 2  # a fixed interval
    AUTO_LEAST = 3  # auto: snapshots cost so little that the shortest interval is used
    AUTO_COST = 4  # auto: the cost of snapshots sets the interval
    AUTO_MOST = 5  # auto: the longest interval, whatever snapshots cost
    CHECKPOINTS = 6  # one snapshot for each checkpoint


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
    """How a trainer spaces its snapshots, and what they cost.

    `stall_s` is the time that a snapshot takes on the training thread.  A snapshot costs this
    stall, and the training time that is lost while the snapshot is copied in the background.  The
    means give more weight to newer snapshots.

    `apart_s` is the time from a capture until the next capture is due.  If another machine must
    have a copy of each snapshot before the interval ends, `apart_s` is shorter than the interval.
    """

    spacing: Spacing = Spacing.NONE
    interval_s: float = 0.0  # 0.0: no periodic snapshots
    taken: int = 0
    stall_s: float = 0.0  # of the last snapshot
    mean_stall_s: float = 0.0
    mean_cost_s: float = 0.0
    apart_s: float = 0.0

    @property
    def share(self) -> float:
        """The share of the training time that snapshots cost at this interval."""
        return self.mean_cost_s / self.apart_s if self.apart_s else 0.0

    @property
    def why(self) -> str:
        """The reason for the interval, for people."""
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
        """Returns the part of `procsv status --json` about snapshots; None if there are none."""
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
    """One beat of a process.

    `moved`: the progress of a service's running jobs, or the number of steps that a task has made.
    It is 0 if the service has no running job, or none that can show progress.

    `in_step`: in phase STEP, True if a step is certainly running; False if the program's own code
    between two steps may be running.
    """

    phase: Phase
    step: int  # global step as last read; -1 before the first reading
    work: int  # finished work: runs of the session, durable checkpoints, written records
    beat_s: float  # monotonic time of the beat
    extended_s: float  # monotonic deadline that procsv.extend() has set; 0.0 if none
    snapshots: Snapshots = Snapshots()  # of a trainer
    refused: int = 0  # messages that a service has refused
    moved: int = 0
    fit: FitPlace | None = None  # of a trainer that fits a Keras model
    in_step: bool = True
    returned: int = NOT_RETURNED  # exit code of a program whose main module has run to its end
    handles: int = 0  # the signals that the program handles itself: bit N is signal N
    loss: Loss | None = None  # of `fit`, as of its newest snapshot
    importing: str = ""  # the package being imported, if the import takes long
