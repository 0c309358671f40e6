"""The lines of journal.jsonl, a class for each event.

Used by scripts/docs, and by programs that read journals.
"""

from __future__ import annotations

from procsv.report.published.attempt_lines import (
    Exited,
    FitBegun,
    Frozen,
    GangFormed,
    HangDetected,
    HangOver,
    HangSuspected,
    NotRestored,
    Promoted,
    Ready,
    Recovered,
    Restarting,
    ServiceRestarted,
    SessionLost,
    SessionRecovered,
    Spawned,
    StandbyReady,
    StateSuspected,
    TaskGivenUp,
    Unprotected,
)
from procsv.report.published.machine_lines import (
    Adopted,
    MemberLost,
    MemberReplaced,
    MirrorFetched,
    MirrorKept,
    MirrorNotFetched,
    MirrorNotKept,
    SpareLost,
    StateFetched,
    StateNotFetched,
)
from procsv.report.published.run_lines import (
    Fault,
    FaultSkipped,
    GaveUp,
    GroundLost,
    GroundRestored,
    LeaseTakenOver,
    LogdirAdopted,
    PreemptNotice,
    RunCompleted,
    RunStarted,
    Stopped,
)
from procsv.report.published.state_lines import (
    CapturedByChief,
    CheckpointDurable,
    CheckpointFailed,
    CheckpointRejected,
    CheckpointsDeleted,
    Held,
    SnapshotFailed,
    SnapshotsResumed,
)

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
    | NotRestored
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
    | MemberLost
    | MemberReplaced
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
