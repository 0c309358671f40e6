"""The lines of journal.jsonl, a class for each event.

Used by scripts/docs, and by programs that read journals.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

Step = Annotated[int, Meta(ge=-1, description="a global step; -1: there was none yet")]
Pid = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Source = Literal["memory", "checkpoint", "fresh", "alive", "chief"]
Reason = Literal["start", "periodic", "final", "crash", "preempt", "manual"]


class Line(Struct, frozen=True, kw_only=True, tag_field="event", forbid_unknown_fields=False):
    """What every line has."""

    time: Annotated[float, Meta(ge=0, description="Unix seconds")]
    role: Annotated[str, Meta(description="the process, and its index where a run has several: trainer, worker.1")]
    incarnation: Annotated[int, Meta(ge=0, description="which start of that process")]


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


class StateSuspected(Line, frozen=True, kw_only=True, tag="state_suspected"):
    """What resumed from this state crashed repeatedly."""

    step: Step


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


class CapturedByChief(Line, frozen=True, kw_only=True, tag="captured_by_chief"):
    """The servers of this session do not capture their variables: the chief fetches them."""

    why: str


class Adopted(Line, frozen=True, kw_only=True, tag="adopted"):
    """A task of another machine has outlived the coordinator that has started it, and goes on with this one."""

    pid: Pid
    host: str


class CapturedByServer(Line, frozen=True, kw_only=True, tag="captured_by_server"):
    """A server has captured what all servers hold while this attempt of the chief, the last one, is dead: the first such snapshot."""

    step: Step
    chief: int


class MemberLost(Line, frozen=True, kw_only=True, tag="member_lost"):
    """Nothing was heard of the launch that hosts this task, on another machine, for `silent` seconds: the task counts as dead."""

    host: str
    silent: Seconds
    spare: str = ""  # the host that takes the task over, when all begin again; "": the run stops


class SpareLost(Line, frozen=True, kw_only=True, tag="spare_lost"):
    """Nothing was heard of a launch that has no task, on another machine, for `silent` seconds: it takes over none."""

    host: str
    silent: Seconds


class StateFetched(Line, frozen=True, kw_only=True, tag="state_fetched"):
    """A task of another machine has what the chief had in memory, which it starts from."""

    step: Step
    bytes: Annotated[int, Meta(ge=0)]
    seconds: Seconds


class StateNotFetched(Line, frozen=True, kw_only=True, tag="state_not_fetched"):
    """What the chief has in memory could not be fetched: a task of another machine starts from the checkpoint of it."""

    step: Step
    why: str


class MirrorKept(Line, frozen=True, kw_only=True, tag="mirror_kept"):
    """The launch of this task, on another machine, keeps a copy of what the chief has in memory from now on: this is the first."""

    step: Step
    bytes: Annotated[int, Meta(ge=0)]
    seconds: Seconds


class MirrorNotKept(Line, frozen=True, kw_only=True, tag="mirror_not_kept"):
    """The copy of the chief's memory could not be brought up to date; it is tried again."""

    why: str


class MirrorFetched(Line, frozen=True, kw_only=True, tag="mirror_fetched"):
    """The coordinator has what another machine kept of the memory of the chief before, which was lost."""

    step: Step
    host: str  # the other machine
    bytes: Annotated[int, Meta(ge=0)]
    seconds: Seconds


class MirrorNotFetched(Line, frozen=True, kw_only=True, tag="mirror_not_fetched"):
    """What another machine kept of the memory of the chief before could not be had: something older counts."""

    step: Step
    host: str
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


class TaskGivenUp(Line, frozen=True, kw_only=True, tag="task_given_up"):
    """A task is not started again in this launch, and the run goes on without it."""

    why: str
    workers: Annotated[int, Meta(ge=0)]  # that have not been given up


class Stopped(Line, frozen=True, kw_only=True, tag="stopped"):
    """The run was stopped; the same command resumes it."""

    step: Step
    durable_step: Step
    source: str


class RunCompleted(Line, frozen=True, kw_only=True, tag="run_completed"):
    """The program has come to its end."""

    step: Step
    goodput: Annotated[float, Meta(ge=0, le=1)]


JournalLine = (
    RunStarted
    | LeaseTakenOver
    | LogdirAdopted
    | Spawned
    | Ready
    | Recovered
    | CheckpointDurable
    | CheckpointFailed
    | CheckpointRejected
    | Exited
    | Restarting
    | Promoted
    | StandbyReady
    | GangFormed
    | ServiceRestarted
    | HangDetected
    | HangSuspected
    | HangOver
    | Frozen
    | SessionLost
    | SessionRecovered
    | FitBegun
    | Unprotected
    | StateSuspected
    | PreemptNotice
    | Fault
    | FaultSkipped
    | CapturedByChief
    | Adopted
    | CapturedByServer
    | MemberLost
    | SpareLost
    | StateFetched
    | StateNotFetched
    | MirrorKept
    | MirrorNotKept
    | MirrorFetched
    | MirrorNotFetched
    | Held
    | SnapshotFailed
    | SnapshotsResumed
    | CheckpointsDeleted
    | GroundLost
    | GroundRestored
    | GaveUp
    | TaskGivenUp
    | Stopped
    | RunCompleted
)
