"""Define the journal's entries: a class for each event.

A class has all fields of its line but time, role and incarnation.  Writers construct entries,
line.py decodes them, and docs/schema/ is made from them.  New events and fields may be added; a new
field needs a default for lines of earlier versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Union

from msgspec import UNSET, Meta, Struct, UnsetType, field, to_builtins

from procsv.base.outcome import NO_STEP, Source
from procsv.base.run.manifest import Reason

TIME_MAX = 1e11  # Unix seconds up to the year 5138; procsv never writes a later time
STEP_MAX = 2**62

Step = Annotated[int, Meta(ge=-1, le=STEP_MAX, description="a global step; -1: there was none yet")]
Count = Annotated[int, Meta(ge=0, le=STEP_MAX)]
Pid = Annotated[int, Meta(ge=0, le=STEP_MAX)]
Seconds = Annotated[float, Meta(ge=0, le=TIME_MAX)]


class Entry(Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base class of all entries."""

    @property
    def event(self) -> str:
        return str(self.__struct_config__.tag)

    def fields(self) -> dict[str, Any]:
        """Returns the fields as in the line, in their order."""
        fields: dict[str, Any] = to_builtins(self)
        del fields["event"]
        return fields


# -- a run: its launches, its end, and its files ----------------------------------------------------------------------
class RunStarted(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="run_started"):
    """A watchdog has taken the logdir."""

    run: str
    pid: Pid
    target: str
    args: tuple[str, ...]
    logdir: str
    first_incarnation: int
    tasks: tuple[str, ...] = ()  # if there are several
    hosts: dict[str, str] = {}  # task -> host, if there are several machines
    spare_hosts: tuple[str, ...] = ()
    options: dict[str, str] = {}  # of launch, except defaults
    versions: dict[str, str] = {}  # of procsv, python and tensorflow
    machine: str = ""  # its name, processors and memory, for people
    seen_until: Seconds | None  # if the previous watchdog was killed: when it last wrote run.json
    asked_at: Seconds | None


class LeaseTakenOver(Entry, frozen=True, kw_only=True, tag="lease_taken_over"):
    """This run has taken the logdir from another machine's run, which had not renewed its lease."""

    host: str
    pid: Pid
    run: str
    since: Seconds


class LogdirAdopted(Entry, frozen=True, kw_only=True, tag="logdir_adopted"):
    """The program has named its directory: checkpoints and events go there from now on."""

    logdir: str


class PreemptNotice(Entry, frozen=True, kw_only=True, tag="preempt_notice"):
    """The machine is about to be taken away."""

    grace: Seconds
    source: str


class Fault(Entry, frozen=True, kw_only=True, tag="fault"):
    """A fault of the plan is about to happen."""

    fault: str
    step: Step


class FaultSkipped(Entry, frozen=True, kw_only=True, tag="fault_skipped"):
    """A fault of the plan was due, but cannot happen in its process."""

    fault: str
    why: str


class GroundLost(Entry, frozen=True, kw_only=True, tag="ground_lost"):
    """A file or directory that the run needs was removed or replaced."""

    what: str
    path: str


class GroundRestored(Entry, frozen=True, kw_only=True, tag="ground_restored"):
    """A lost file or directory was recreated."""

    what: str
    path: str
    seconds: Seconds


class GaveUp(Entry, frozen=True, kw_only=True, tag="gave_up"):
    """The run was given up."""

    why: str


class Stopped(Entry, frozen=True, kw_only=True, tag="stopped"):
    """The run was stopped; the same command resumes it."""

    step: Step
    durable_step: Step
    source: str


class RunCompleted(Entry, frozen=True, kw_only=True, tag="run_completed"):
    """The program has completed."""

    step: Step
    goodput: Annotated[float, Meta(ge=0, le=1)]


# -- the processes of a run: their attempts, sessions, hangs and ends -------------------------------------------------
class Spawned(Entry, frozen=True, kw_only=True, tag="spawned"):
    """A process was started."""

    pid: Pid


class Ready(Entry, frozen=True, kw_only=True, tag="ready"):
    """The first step after the restore has ended."""

    step: Step


class Recovered(Entry, frozen=True, kw_only=True, tag="recovered"):
    """An attempt has resumed from this state."""

    step: Step
    source: Source
    origin: str = field(name="from")
    seconds: Seconds
    lost_steps: Count | UnsetType = UNSET


class Exited(Entry, frozen=True, kw_only=True, tag="exited"):
    """A process has ended."""

    pid: Pid
    code: int | None
    signal: str | None
    cause: str
    evidence: str
    step: Step = NO_STEP


class Restarting(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="restarting"):
    """The program is started again."""

    delay: Seconds
    lost_steps: Count
    lost_seconds: Seconds | UnsetType = UNSET  # training since the last save, for a program without a step counter
    why: str = ""  # the reason for a planned restart


class Promoted(Entry, frozen=True, kw_only=True, tag="promoted"):
    """A standby has become the trainer."""

    pid: Pid
    standby: int  # the standby's own number


class StandbyReady(Entry, frozen=True, kw_only=True, tag="standby_ready"):
    """A standby has imported the program's modules."""

    pid: Pid
    modules: int
    seconds: Seconds


class ServiceRestarted(Entry, frozen=True, kw_only=True, tag="service_restarted"):
    """A service was started again."""

    pid: Pid


class HangDetected(Entry, frozen=True, kw_only=True, tag="hang_detected"):
    """A process makes no progress."""

    phase: str
    seconds: Seconds
    step: Step


class HangSuspected(Entry, frozen=True, kw_only=True, tag="hang_suspected"):
    """A program without a session does nothing; procsv leaves it alone."""

    phase: str
    seconds: Seconds
    step: Step


class HangOver(Entry, frozen=True, kw_only=True, tag="hang_over"):
    """A program that hung, but was not ended, makes progress again."""

    seconds: Seconds
    step: Step


class Frozen(Entry, frozen=True, kw_only=True, tag="frozen"):
    """The program continues after a signal had stopped it."""

    seconds: Seconds
    step: Step


class SessionLost(Entry, frozen=True, kw_only=True, tag="session_lost"):
    """A monitored session has lost its connection."""

    error: str
    step: Step


class SessionRecovered(Entry, frozen=True, kw_only=True, tag="session_recovered"):
    """A monitored session was rebuilt in the same process."""

    step: Step
    source: Source
    origin: str = field(name="from")
    at: Step
    seconds: Seconds
    lost_steps: Count


class GangFormed(Entry, frozen=True, kw_only=True, tag="gang_formed"):
    """All tasks of a gang have ended their first step together."""

    generation: Annotated[int, Meta(ge=1)]
    step: Step
    seconds: Seconds


class FitBegun(Entry, frozen=True, kw_only=True, tag="fit_begun"):
    """A fit of a Keras model begins."""

    fit: Annotated[int, Meta(ge=1)]
    model: str
    epochs: int
    how: str


class Unprotected(Entry, frozen=True, kw_only=True, tag="unprotected"):
    """The program has no session, so nothing of it is saved."""

    seconds: Seconds


class NotRestored(Entry, frozen=True, kw_only=True, tag="not_restored"):
    """The program has not restored what was saved, and has started from the beginning."""

    step: Step  # of the saved state


class StateSuspected(Entry, frozen=True, kw_only=True, tag="state_suspected"):
    """Attempts that resumed from this state crashed repeatedly."""

    step: Step


class TaskGivenUp(Entry, frozen=True, kw_only=True, tag="task_given_up"):
    """A task is not started again in this launch, and the run goes on without it."""

    why: str
    workers: Count  # how many remain


# -- the state: its snapshots and its checkpoints ---------------------------------------------------------------------
class CheckpointDurable(Entry, frozen=True, kw_only=True, tag="checkpoint_durable"):
    """A checkpoint is on disk and was read back."""

    step: Step
    path: str
    reason: Reason
    bytes: Count
    seconds: Seconds
    trainer: int


class CheckpointFailed(Entry, frozen=True, kw_only=True, tag="checkpoint_failed"):
    """A checkpoint could not be written."""

    step: Step
    error: str


class CheckpointRejected(Entry, frozen=True, kw_only=True, tag="checkpoint_rejected"):
    """A checkpoint failed verification and was moved aside."""

    path: str
    why: str


class CapturedByChief(Entry, frozen=True, kw_only=True, tag="captured_by_chief"):
    """The servers of this session do not capture their variables, so the chief fetches them."""

    why: str


class Held(Entry, frozen=True, kw_only=True, tag="held"):
    """Tells whether other tasks are held between two steps for a snapshot; written on a change."""

    is_exact: bool
    ms: Annotated[float, Meta(ge=0)]
    why: str


class SnapshotFailed(Entry, frozen=True, kw_only=True, tag="snapshot_failed"):
    """The program's state could not be captured."""

    step: Step
    error: str
    is_last: bool


class CheckpointsDeleted(Entry, frozen=True, kw_only=True, tag="checkpoints_deleted"):
    """The program has deleted its logdir with its checkpoints; `kept`: procsv puts them back."""

    count: int
    kept: bool = False  # procsv has kept the checkpoints, and puts them back for the program's session


class SnapshotsResumed(Entry, frozen=True, kw_only=True, tag="snapshots_resumed"):
    """The program's state can be captured again."""

    step: Step


# -- several machines -------------------------------------------------------------------------------------------------
class Adopted(Entry, frozen=True, kw_only=True, tag="adopted"):
    """A task on another machine has outlived its coordinator, and goes on under this one."""

    pid: Pid
    host: str


class MemberLost(Entry, frozen=True, kw_only=True, tag="member_lost"):
    """This task's launch on another machine was silent for `silent` s; the task counts as dead."""

    host: str
    silent: Seconds
    spare: str = ""  # the host that takes over the task when all restart; "": the run stops


class MemberReplaced(Entry, frozen=True, kw_only=True, tag="member_replaced"):
    """This task's launch on another machine was killed, and another launch there replaced it."""

    host: str
    before: Pid  # of the killed launch
    pid: Pid  # of its replacement


class SpareLost(Entry, frozen=True, kw_only=True, tag="spare_lost"):
    """A spare launch on another machine was silent for `silent` seconds, so it is not used."""

    host: str
    silent: Seconds


class StateFetched(Entry, frozen=True, kw_only=True, tag="state_fetched"):
    """A task on another machine has fetched the chief's state from memory, and starts from it."""

    step: Step
    bytes: Count
    seconds: Seconds


class StateNotFetched(Entry, frozen=True, kw_only=True, tag="state_not_fetched"):
    """A task on another machine could not fetch the chief's memory, so it uses the checkpoint."""

    step: Step
    why: str


class MirrorKept(Entry, frozen=True, kw_only=True, tag="mirror_kept"):
    """This task's launch, on another machine, has made its first copy of the chief's memory."""

    step: Step
    bytes: Count
    seconds: Seconds


class MirrorNotKept(Entry, frozen=True, kw_only=True, tag="mirror_not_kept"):
    """The copy of the chief's memory could not be updated; it is tried again."""

    why: str


class MirrorFetched(Entry, frozen=True, kw_only=True, tag="mirror_fetched"):
    """The coordinator has fetched the copy of the lost chief's memory that another machine kept."""

    step: Step
    host: str  # the other machine
    bytes: Count
    seconds: Seconds


class MirrorNotFetched(Entry, frozen=True, kw_only=True, tag="mirror_not_fetched"):
    """The lost chief's memory copy could not be fetched, so training uses an older state."""

    step: Step
    host: str
    why: str


if TYPE_CHECKING:
    AnyEntry = Entry
else:  # the decoder distinguishes the classes by their tags
    AnyEntry = Union[tuple(Entry.__subclasses__())]  # noqa: UP007  there is no other way to spell a union of a list
