"""Journal lines of the state: its snapshots, and its checkpoints.

Listed in journal_lines.py.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from procsv.report.published.line import Line, Reason, Seconds, Step


class CheckpointDurable(Line, frozen=True, kw_only=True, tag="checkpoint_durable"):
    """A checkpoint is on disk, and was read back."""

    step: Step
    path: str
    reason: Reason
    bytes: Annotated[int, Meta(ge=0)]
    seconds: Seconds
    trainer: int


class CheckpointFailed(Line, frozen=True, kw_only=True, tag="checkpoint_failed"):
    """A checkpoint could not be written."""

    step: Step
    error: str


class CheckpointRejected(Line, frozen=True, kw_only=True, tag="checkpoint_rejected"):
    """A checkpoint failed its checks, and was moved aside."""

    path: str
    why: str


class CapturedByChief(Line, frozen=True, kw_only=True, tag="captured_by_chief"):
    """The servers of this session do not capture their variables: the chief fetches them."""

    why: str


class Held(Line, frozen=True, kw_only=True, tag="held"):
    """Whether the other tasks are held between two steps for a snapshot, where that has changed since the one before."""

    is_exact: bool
    ms: Annotated[float, Meta(ge=0)]
    why: str


class SnapshotFailed(Line, frozen=True, kw_only=True, tag="snapshot_failed"):
    """The program's state could not be taken."""

    step: Step
    error: str
    is_last: bool


class CheckpointsDeleted(Line, frozen=True, kw_only=True, tag="checkpoints_deleted"):
    """The program has deleted its logdir, and its checkpoints with it; `kept`: they are put back for its session."""

    count: int
    kept: bool = False


class SnapshotsResumed(Line, frozen=True, kw_only=True, tag="snapshots_resumed"):
    """The program's state can be taken again."""

    step: Step
