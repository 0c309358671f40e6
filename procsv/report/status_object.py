"""Define the object that `procsv status --json` prints.

The watchdog makes it, or the command itself if no watchdog answers. scripts/docs generates its
schema.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from procsv.base.journal.entries import Seconds, Step
from procsv.base.outcome import FitPlace, LastExit, Loss, SaveHabit
from procsv.base.run.run_file import RunFile
from procsv.ipc.shm.heartbeat import SnapshotStatus


class Process(Struct, frozen=True, kw_only=True):
    """One process of the run; without a pid it is not there now."""

    role: str
    pid: int | None
    state: str
    phase: str
    uptime: Seconds | UnsetType = UNSET
    rss: Annotated[int, Meta(ge=0, description="bytes")] | UnsetType = UNSET
    cpu: Annotated[float, Meta(ge=0, description="percent of a core")] | UnsetType = UNSET


class TaskStatus(Struct, frozen=True, kw_only=True):
    """One task of a run that has several; without a pid it is not there now."""

    task: str
    host: Annotated[str, Meta(description="its machine, where a run has several")] | None
    state: str
    phase: str
    pid: int | None
    incarnation: int
    restarts: Annotated[int, Meta(ge=0, description="in this launch")]
    steps_per_s: (
        Annotated[float, Meta(ge=0, description="of its own")] | None
    )  # null: it does not train, or this is unknown
    last_exit: LastExit | None
    waits_for: Annotated[str, Meta(description="a task whose progress it waits for")] | None


class Memory(Struct, frozen=True, kw_only=True):
    """Bytes of this machine."""

    available: int
    total: int


class StatusObject(Struct, frozen=True, kw_only=True):
    """The state of a run."""

    running: bool
    run: str
    target: str
    args: tuple[str, ...]
    logdir: str
    root: str  # the run's own directory, if the program named another one as the logdir
    pid: int
    state: str
    task: Annotated[
        str, Meta(description="whose state is saved, and told here: trainer, or the chief of several tasks")
    ]
    incarnation: int
    step: Step
    steps_total: Step
    fit: FitPlace | None  # the progress of a Keras fit
    loss: Annotated[Loss | None, Meta(description="of that fit, as of its newest snapshot")]
    importing: Annotated[str, Meta(description="the package whose import takes its time")]
    durable_step: Step
    memory_step: Step
    mirror_step: Step  # of the memory copy on another machine
    mirror_host: str
    restarts: int
    no_progress_count: int
    last_exit: LastExit | None
    next_restart_in: Seconds | None
    awaits_room: bool  # a full disk ended a task, which restarts when there is room
    step_s: Annotated[float, Meta(ge=0, description="seconds; 0: unknown")]
    save_error: str | None
    next_save_in: Seconds | None
    ground_error: str | None
    protected: bool | None
    habit: SaveHabit  # whether "steps" in this object are steps or saves, and whether the program restores at its start
    goodput: Annotated[float, Meta(ge=0, le=1, description="of the run, in all its launches")]
    launch_goodput: Annotated[float, Meta(ge=0, le=1, description="of the last launch alone")]
    started_at: Seconds
    ended_at: Seconds | None
    seen_until: (
        Annotated[
            float,
            Meta(description="Unix time at which a watchdog that was killed, or is elsewhere, wrote its state last"),
        ]
        | UnsetType
    ) = UNSET
    elsewhere: (
        Annotated[str, Meta(description="machine or container that must be asked whether the watchdog is alive")]
        | UnsetType
    ) = UNSET
    exit_code: int | None
    gave_up: str  # why the run was given up; otherwise ""
    crash_report: str | UnsetType = UNSET  # path of the report of the crash after which the run was given up
    processes: tuple[Process, ...]
    tasks: tuple[TaskStatus, ...] | UnsetType = UNSET  # if there are several, the chief first
    generation: (
        Annotated[int, Meta(ge=1, description="rises when a gang is started again, or a parameter server is lost")]
        | UnsetType
    ) = UNSET
    snapshots: SnapshotStatus | None
    memory: Memory | UnsetType = UNSET
    dropped_messages: int | UnsetType = UNSET


def status_of(run: RunFile, **more: Any) -> StatusObject:  # noqa: ANN401  the other fields
    """Build a status from what run.json says, plus the fields `more`.

    The status leaves out the fields of RunFile that StatusObject does not have, such as paths.
    """
    shown = set(StatusObject.__struct_fields__)
    return StatusObject(**{name: getattr(run, name) for name in RunFile.__struct_fields__ if name in shown}, **more)
