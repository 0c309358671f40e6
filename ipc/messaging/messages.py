"""Every message between two processes of a run: who says it to whom, what answers it, what if it is lost.

Pure data, encoded by codec.py.  Tensors never travel here: they lie in slots (slot_file.py), large event records
in parcel files, and messages name them.

A message with `seq` > 0 in its envelope is *reliable*: its sender says it again until the receiver
acknowledges it with Ack or an answer (envelope `re`), so every receiver may see it twice and drops what it
has already handled.  `seq` 0 is said once and may be lost.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from procsv.base.identity import TaskId

Reason = Literal["start", "periodic", "final", "crash", "preempt", "manual"]
Source = Literal["memory", "checkpoint", "fresh"]

SavedKey = tuple[int, str, float]

PROTOCOL = 2  # a peer of another protocol is refused, with both numbers in the error


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all bodies."""


# -- anyone ------------------------------------------------------------------------------------------------
class Ack(Message, frozen=True):
    """Receiver -> sender of the reliable message that the envelope's `re` names.  If lost: that is resent."""


class Hello(Message, frozen=True):
    """Trainer or service -> watchdog; trainer or watchdog -> service.  First word on a new connection.

    Answered by Ack.  A server sends its news (Durable, SaveFailed, …) to every peer that has said Hello.
    """

    pid: int


# -- trainer -> checkpoint service -------------------------------------------------------------------------
class CheckpointPlan(Message, frozen=True):
    """Trainer -> checkpoint: how this run's checkpoints are named and kept.  Before anything else it asks.

    Answered by Ack.  If lost: resent; Restore and Snapshot wait behind it.
    `meta_path` is a file on the shared-memory filesystem with the serialized MetaGraphDef ("" for none).
    """

    save_path: str  # logdir/basename; "-<step>" follows where there is a global step
    latest_filename: str
    save_secs: float  # periodic checkpoints; 0 for none
    max_to_keep: int  # 0 keeps all
    keep_every_n_hours: float
    pad_step_number: bool
    save_relative_paths: bool
    meta_path: str
    keep_from: float = 0.0  # Unix seconds that keep_every_n_hours counts from: when the Saver was made; 0.0: not known


class Restore(Message, frozen=True):
    """Trainer -> checkpoint: which state shall I start from?  Answered by RestoreFrom (after verification).

    Any state the last trainer left in memory is by then being written to disk, if it is not there yet.
    `durable_only`: the trainer cannot feed memory (its own session manager, say); answer with a checkpoint.
    """

    durable_only: bool


class RestoreFrom(Message, frozen=True):
    """Checkpoint -> trainer.  Answers Restore.

    memory: `path` is the slot file to map, never to be written again.  checkpoint: `path` is the prefix.
    fresh: there is nothing; initialise.  `error` is not "" if checkpoints exist and none is good: the trainer
    must fail with that text, never start from step 0.
    `sequence` is the highest snapshot sequence known; the trainer numbers its own from there.
    """

    source: Source
    path: str
    step: int
    sequence: int
    all_paths: tuple[str, ...]  # checkpoints that are kept, oldest first
    error: str


class Restored(Message, frozen=True):
    """Trainer -> checkpoint: the state is in the session.  Answered by Ack.

    A slot it came from is now mapped privately: it is unlinked as soon as its state is durable.
    """

    source: Source
    path: str
    step: int


class Snapshot(Message, frozen=True):
    """Trainer -> checkpoint: a slot is READY.  Answered by Ack; by Durable or SaveFailed too if `want` is set.

    If lost: resent; the slot itself says the same to whoever looks.
    `want` asks for a durable checkpoint now, for that reason ("" leaves it to the cadence).
    """

    slot: str
    sequence: int
    step: int
    want: Reason | Literal[""]


class Staged(Message, frozen=True):
    """Trainer -> checkpoint: the Saver's own op has written checkpoint `prefix` into a staging directory.

    For Savers that no slot can serve, and where shared memory cannot be had.  The service verifies the files
    and moves them in; it owns the directory from now on.  Answered like Snapshot.
    """

    prefix: str
    sequence: int
    step: int
    want: Reason | Literal[""]


class UserSave(Message, frozen=True):
    """Trainer -> checkpoint: the program has saved checkpoint `path` by the supervised Saver, and is done with it.

    Answered by Ack once it was verified and has its manifest, or turned out to be of no use.  If lost: resent; the
    directory itself says the same, but not whose the checkpoint is.
    """

    path: str


# -- checkpoint service -> trainer and watchdog ------------------------------------------------------------
class Durable(Message, frozen=True):
    """Checkpoint -> every peer: this state is on disk and verified; it can be restored from now on.

    Answered by Ack.  If lost: resent; seen twice, it changes nothing.
    `incarnation` is the trainer's whose state it is.  `sequence` 0: no snapshot of ours, the program's own save.
    `all_paths`: the Saver's checkpoints that are kept now, oldest first.  `time` tells one save from another.
    """

    sequence: int
    step: int
    incarnation: int
    path: str
    reason: Reason
    bytes: int
    seconds: float
    all_paths: tuple[str, ...]
    time: float = 0.0  # of its manifest (Unix seconds)

    @property
    def key(self) -> SavedKey:
        """The same for all that is said of one save."""
        return self.sequence, self.path, self.time


class SaveFailed(Message, frozen=True):
    """Checkpoint -> every peer: this save failed; the last good checkpoint stands; it will be tried again.

    Answered by Ack.  `retry_in`: seconds until the next try, unless somebody asks for one.
    """

    sequence: int
    step: int
    error: str
    retry_in: float = 0.0


class Unwritable(Message, frozen=True):
    """Checkpoint -> every peer: nothing can be saved where the checkpoints are, for the reason `error` (the directory is
    gone, or read-only); "" when that is over.  Said when it changes.  Answered by Ack.
    """

    error: str


class Rejected(Message, frozen=True):
    """Checkpoint -> every peer: a checkpoint or slot failed verification and was passed over.  Ack."""

    path: str
    why: str


# -- watchdog (or the trainer's own host) -> services ------------------------------------------------------
class TrainerExited(Message, frozen=True):
    """Watchdog -> checkpoint: the trainer of this incarnation is dead and reaped.

    Its newest READY slot is saved: at once if `clean`, else once the next trainer has it, and after a second at the
    latest.  Answered by FlushDone when nothing of it is left unsaved.
    """

    incarnation: int
    clean: bool  # it said it was done, or was asked to stop
    avoid_step: int = -1  # what resumed from this step crashed again and again: the next one is to get an older state


class FlushDone(Message, frozen=True):
    """Checkpoint -> watchdog.  Answers TrainerExited and Finish: what of the trainer could be saved, is.

    `error` is not "" if the newest state could not be made durable.
    """

    step: int  # -1: nothing durable
    error: str


class Finish(Message, frozen=True):
    """Watchdog or host -> service: the run is over.  Save what is unsaved, tidy up, answer FlushDone, exit 0."""


# -- trainer -> summary service ----------------------------------------------------------------------------
class OpenWriter(Message, frozen=True):
    """Trainer -> summary: records of stream `writer` follow; they go to a new event file in `logdir`.

    Answered by Written (which says from where to go on, after a restart of the service).
    """

    writer: str  # "<incarnation>-<number>", a name for one event file
    logdir: str
    filename_suffix: str


class Records(Message, frozen=True):
    """Trainer -> summary: consecutive event records `first`, `first` + 1, … of one stream.

    Answered by Written.  If lost: the sender goes back to what was written last.  A record is the bytes of
    a serialized Event; an empty one is in the parcel file that `parcels` names by its number.
    """

    writer: str
    first: int
    records: tuple[bytes, ...]
    parcels: dict[int, str]


class CloseWriter(Message, frozen=True):
    """Trainer -> summary: stream `writer` ends after record `last`.  Answered by Written."""

    writer: str
    last: int


class Written(Message, frozen=True):
    """Summary -> trainer: records up to `through` are in the event file (0: none yet).

    Answers OpenWriter, Records and CloseWriter.  `through` -1: the stream is not open here; open it again.
    """

    writer: str
    through: int
    error: str  # why records are not getting to the file ("" if they are); they are kept and tried again


class RunMetrics(Message, frozen=True):
    """Watchdog -> summary: figures of the run itself, for TensorBoard.  Said once; a lost one is replaced by the next."""

    wall_s: float  # Unix seconds
    step: int  # of the record: the second of the run, which only rises, as a global step does not
    values: dict[str, float]  # by tag


class GraphText(Message, frozen=True):
    """Trainer -> summary: write the serialized GraphDef in `parcel` as text to `path`, atomically.

    Answered by Ack when the file is in place; the parcel is removed then.
    """

    parcel: str
    path: str


# -- trainer -> watchdog -----------------------------------------------------------------------------------
class FirstStepDone(Message, frozen=True):
    """Trainer -> watchdog: the first step after the start has ended (READY).  Answered by Ack.

    `ended_s` is the monotonic time of that end, comparable within one boot.
    """

    restored_step: int
    source: Source
    origin: str
    step: int
    ended_s: float


class Loaded(Message, frozen=True):
    """Trainer -> watchdog: it trains, and what it has imported is written down (paths.loaded).  Answered by Ack.

    A standby can be made from now on.
    """


class Note(Message, frozen=True):
    """Trainer -> watchdog: a fact for the journal that only the trainer knows.  Answered by Ack."""

    event: str
    fields: dict[str, str | int | float | bool | None]


# -- watchdog -> trainer -----------------------------------------------------------------------------------
class StopTraining(Message, frozen=True):
    """Watchdog -> trainer: stop at the next boundary, save, exit.  Answered by Ack.

    If lost: resent, and a SIGTERM says the same.
    """

    grace_s: float
    reason: Reason


class ServiceLost(Message, frozen=True):
    """Watchdog -> trainer: this service has died too often and will not be started again.  Answered by Ack.

    Whoever waits for it is told at once.  If lost: resent.
    """

    service: TaskId
    why: str


class Inject(Message, frozen=True):
    """Watchdog -> trainer or service: have this fault now, because a plan of the user's says so.  Answered by Ack.

    raise, exit (`number`: the code) and hang befall the next moment between two steps, or between two messages.  fill and
    drop last for `number` seconds: writing to the disk fails, messages that come in are dropped.
    """

    action: Literal["raise", "exit", "hang", "fill", "drop"]
    number: float


# -- command line -> watchdog ------------------------------------------------------------------------------
class StatusRequest(Message, frozen=True):
    """Command line -> watchdog.  Answered by Status at once, whatever the trainer does."""


class Status(Message, frozen=True):
    """Watchdog -> command line: the JSON object that `procsv status --json` prints."""

    json: bytes


class StopRun(Message, frozen=True):
    """Command line -> watchdog: end the run, with exit code 75 after a durable checkpoint.  Answered by Ack."""

    now: bool


class RestartTrainer(Message, frozen=True):
    """Command line -> watchdog: save, end the trainer and start it again, free of charge.  Answered by Ack."""


Body = (
    Ack
    | Hello
    | CheckpointPlan
    | Restore
    | RestoreFrom
    | Restored
    | Snapshot
    | Staged
    | UserSave
    | Durable
    | SaveFailed
    | Unwritable
    | Rejected
    | TrainerExited
    | FlushDone
    | Finish
    | OpenWriter
    | Records
    | CloseWriter
    | Written
    | GraphText
    | RunMetrics
    | FirstStepDone
    | Loaded
    | Note
    | StopTraining
    | ServiceLost
    | Inject
    | StatusRequest
    | Status
    | StopRun
    | RestartTrainer
)


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What every message travels in."""

    protocol: int
    run: str  # run id; a message of another run is dropped and counted
    task: TaskId  # the sender
    incarnation: int  # of the sender
    seq: int  # > 0: reliable, rising by one per sender and receiver
    re: int  # the seq that this answers or acknowledges; 0 if none
    body: Body
