"""Messages between two processes of a run.

Pure data, encoded by codec.py.  Tensors never travel here: they lie in slots (slot_file.py), large event records in
parcel files, and messages name them.  To add a message, add a class with its contract here, and let its sender send it
and its receiver handle it; docs/messages.md is made from this file by scripts/docs.

A message with `seq` > 0 in its envelope is *reliable*: its sender repeats it until the receiver acknowledges it with Ack
or an answer (envelope `re`), so a receiver may see it twice and drops what it has already handled.  A message with `seq`
0 is sent once and may be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Union

import msgspec

from procsv.base.identity import TRAINER, TaskId
from procsv.base.run.manifest import Reason
from procsv.ipc.messaging import member_messages  # their classes are bodies, too
from procsv.ipc.messaging.contract import (
    ANY,
    CHECKPOINT,
    COMMAND_LINE,
    EVENT_SERVICE,
    PROGRAM,
    SERVICE,
    STATE_SERVICE,
    SUMMARY,
    WATCHDOG,
    Contract,
)
from procsv.ipc.messaging.message import Message as Message
from procsv.ipc.messaging.state_offer import StateOffer

__all__ = ["member_messages"]

# alive: a chief has left the model on the servers as it was; chief: a worker has taken it as its chief has made it.
Source = Literal["memory", "checkpoint", "fresh", "alive", "chief"]

SavedKey = tuple[int, str, float]

# A peer of another protocol is refused, with both numbers in the error.  Raise it when a field changes its meaning or goes, so
# that a service of another version, left by an upgrade in a running logdir, is not misunderstood; not for a new message.
PROTOCOL = 2


# -- anyone ------------------------------------------------------------------------------------------------
class Ack(Message, frozen=True):
    """Acknowledges the reliable message that the envelope's `re` names, once it has taken effect."""

    contract = Contract(ANY, ANY, is_reliable=False)


class Hello(Message, frozen=True):
    """Introduces a process: the first message on a new connection.

    A service sends its news (Durable, SaveFailed, …) to every peer that has said Hello.
    """

    contract = Contract(PROGRAM | WATCHDOG, WATCHDOG | SERVICE)

    pid: int


# -- checkpoint service -> trainer and watchdog ------------------------------------------------------------
class Durable(Message, frozen=True):
    """Tells every peer that this state is on disk and verified: it can be restored from now on.

    `incarnation` is the trainer's whose state it is.  `sequence` 0: no snapshot of ours, the program's own save.
    `all_paths`: the run's own checkpoints that are kept now, oldest first.  `time` tells one save from another.
    """

    contract = Contract(CHECKPOINT, PROGRAM | WATCHDOG)

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
    """Tells every peer that this save failed; the last good checkpoint stands, and the save is tried again.

    `retry_in`: seconds until the next try, unless somebody asks for one.
    """

    contract = Contract(CHECKPOINT, PROGRAM | WATCHDOG)

    sequence: int
    step: int
    error: str
    retry_in: float = 0.0


class Unwritable(Message, frozen=True):
    """Tells every peer that nothing can be saved where the checkpoints are, or that this is over.

    `error` says why (the directory is gone, or read-only); "" when it is over.
    """

    contract = Contract(CHECKPOINT, PROGRAM | WATCHDOG)

    error: str


class Rejected(Message, frozen=True):
    """Tells every peer that a checkpoint or slot failed verification and was passed over."""

    contract = Contract(CHECKPOINT, PROGRAM | WATCHDOG)

    path: str
    why: str


# -- trainer -> checkpoint service -------------------------------------------------------------------------
KEEP_NEVER_HOURS = (
    10_000.0  # of a CheckpointPlan: Saver's default for keep_checkpoint_every_n_hours; no run is that long
)


class CheckpointPlan(Message, frozen=True):
    """Says how this run's checkpoints are named and kept, before the program asks for anything else.

    `meta_path` is a file on the shared-memory filesystem with the serialized MetaGraphDef ("" for none).
    """

    contract = Contract(PROGRAM, CHECKPOINT)

    save_path: str  # logdir/basename; "-<step>" follows where there is a global step
    latest_filename: str
    save_secs: float  # periodic checkpoints; 0 for none
    max_to_keep: int  # 0 keeps all
    keep_every_n_hours: float
    pad_step_number: bool
    save_relative_paths: bool
    meta_path: str
    keep_from: float = 0.0  # Unix seconds that keep_every_n_hours counts from; 0.0: not known
    lists_times: bool = False  # the `checkpoint` file says when each was written, as tf.train.CheckpointManager's does
    is_mixed: bool = False  # other tasks change the variables meanwhile: a state may have updates of neighbouring steps


class RestoreFrom(Message, frozen=True):
    """Names the verified state to start from.

    memory: `path` is the slot file to map, never to be written again; `offer` says how another machine fetches it, and there its
    path is what it has been fetched to.  checkpoint: `path` is the prefix.
    fresh: there is nothing; initialise.  `error` is not "" if checkpoints exist and none is good: the trainer
    must fail with that text, never start from step 0.
    `sequence` is the highest snapshot sequence known; the trainer numbers its own from there.
    """

    contract = Contract(CHECKPOINT, PROGRAM)

    source: Source
    path: str
    step: int
    sequence: int
    all_paths: tuple[str, ...]  # checkpoints that are kept, oldest first
    error: str
    offer: StateOffer | None = None


class Restore(Message, frozen=True):
    """Asks for the state to start from.

    Any state the last trainer left in memory is by then being written to disk, if it is not there yet.
    `durable_only`: the trainer cannot feed memory (its own session manager, say); answer with a checkpoint.
    `fetches`: it is on another machine; memory is to be offered.
    """

    contract = Contract(PROGRAM, CHECKPOINT, (RestoreFrom,))

    durable_only: bool
    fetches: bool = False


class Restored(Message, frozen=True):
    """Says that the state is in the session.

    A slot it came from is now mapped privately: it is unlinked as soon as its state is durable, and the other tasks that train
    in step have it; one that was fetched, at once.
    """

    contract = Contract(PROGRAM, CHECKPOINT)


class Snapshot(Message, frozen=True):
    """Says that a slot is READY.

    The slot itself says the same to whoever looks.  `want` asks for a durable checkpoint now, for that reason, and is
    answered by what became of it; "" leaves the saving to the cadence.
    """

    contract = Contract(PROGRAM, CHECKPOINT, (Durable, SaveFailed))

    sequence: int
    step: int
    want: Reason | Literal[""]


class Staged(Message, frozen=True):
    """Says that the program has written checkpoint `prefix` itself, into a staging directory.

    For a state that no slot can hold, and where shared memory cannot be had.  The service verifies the files
    and moves them in; it owns the directory from now on.  `want` as in Snapshot.
    """

    contract = Contract(PROGRAM, CHECKPOINT, (Durable, SaveFailed))

    prefix: str
    sequence: int
    step: int
    want: Reason | Literal[""]


class UserSave(Message, frozen=True):
    """Says that the program has saved checkpoint `path` by the means that the run uses, and is done with it.

    Acknowledged once it was verified and has its manifest, or turned out to be of no use.  The directory itself says the
    same, but not whose the checkpoint is.
    """

    contract = Contract(PROGRAM, CHECKPOINT)

    path: str


class FilePlaced(Message, frozen=True):
    """Tells that the file of a parcel is in its place, on disk.

    `error` is not "" if it could not be written: the service goes on trying until a newer one takes its place.
    """

    contract = Contract(CHECKPOINT, PROGRAM)

    path: str
    error: str


class PlaceFile(Message, frozen=True):
    """Asks to put the file in `parcel`, on the shared-memory filesystem, where the parcel says it belongs.

    A service that starts finds the parcels that were left by itself.
    """

    contract = Contract(PROGRAM, CHECKPOINT, (FilePlaced,))

    parcel: str


# -- watchdog -> services -------------------------------------------------------------------------------------
class FlushDone(Message, frozen=True):
    """Says that what could be saved of the trainer is saved.

    `error` is not "" if the newest state could not be made durable.
    """

    contract = Contract(SERVICE, WATCHDOG | PROGRAM)

    step: int  # -1: nothing durable
    error: str


class TrainerExited(Message, frozen=True):
    """Says that this incarnation of a task is dead and reaped.

    Its newest READY slot is saved: at once if `clean`, else once the next trainer has it, and after a second at the
    latest.  Answered when nothing of it is left unsaved.
    """

    contract = Contract(WATCHDOG, STATE_SERVICE, (FlushDone,))

    incarnation: int
    clean: bool  # it said it was done, or was asked to stop
    avoid_step: int = -1  # what resumed from this step crashed again and again: the next one is to get an older state
    task: TaskId = TRAINER


class Finish(Message, frozen=True):
    """Says that the run is over: save what is unsaved, tidy up, answer, exit 0."""

    contract = Contract(WATCHDOG | PROGRAM, SERVICE, (FlushDone,))


# -- trainer -> summary service ----------------------------------------------------------------------------
class Written(Message, frozen=True):
    """Says that records up to `through` are in the event file (0: none yet).

    `through` -1: the stream is not open here; open it again.
    """

    contract = Contract(EVENT_SERVICE, PROGRAM, is_reliable=False)

    writer: str
    through: int
    error: str  # why records are not getting to the file ("" if they are); they are kept and tried again


class OpenWriter(Message, frozen=True):
    """Says that records of stream `writer` follow; they go to a new event file in `logdir`.

    The answer says from where to go on, after a restart of the service.
    """

    contract = Contract(PROGRAM, EVENT_SERVICE, (Written,), is_reliable=False)

    writer: str  # "<incarnation>-<number>", a name for one event file
    logdir: str
    filename_suffix: str


class Records(Message, frozen=True):
    """Carries consecutive event records `first`, `first` + 1, … of one stream.

    If they are lost, the sender goes back to what was written last.  A record is the bytes of a serialized Event; an empty
    one is in the parcel file that `parcels` names by its number.
    """

    contract = Contract(PROGRAM, EVENT_SERVICE, (Written,), is_reliable=False)

    writer: str
    first: int
    records: tuple[bytes, ...]
    parcels: dict[int, str]


class CloseWriter(Message, frozen=True):
    """Says that stream `writer` ends after record `last`."""

    contract = Contract(PROGRAM, EVENT_SERVICE, (Written,), is_reliable=False)

    writer: str
    last: int


class RunMetrics(Message, frozen=True):
    """Carries figures of the run itself, for TensorBoard; a lost one is replaced by the next."""

    contract = Contract(WATCHDOG, EVENT_SERVICE, is_reliable=False)

    wall_s: float  # Unix seconds
    step: int  # of the record: the second of the run, which only rises, as a global step does not
    values: dict[str, float]  # by tag


class GraphText(Message, frozen=True):
    """Asks to write the serialized GraphDef in `parcel` as text to `path`, atomically.

    Acknowledged when the file is in place; the parcel is removed then.
    """

    contract = Contract(PROGRAM, SUMMARY)

    parcel: str
    path: str


# -- trainer -> watchdog -----------------------------------------------------------------------------------
class FirstStepDone(Message, frozen=True):
    """Says that the first step after the start has ended (READY).

    `ended_s` is the monotonic time of that end, comparable within one boot.
    """

    contract = Contract(PROGRAM, WATCHDOG)

    restored_step: int
    source: Source
    origin: str
    step: int
    ended_s: float
    steps_total: int = -1  # at which the program will end, where it has told


class Loaded(Message, frozen=True):
    """Says that the program has written down what it has imported by now (paths.loaded).

    Said when it asks for the run, and when it trains.  A standby can be made from now on; one that waits imports the rest.
    """

    contract = Contract(PROGRAM, WATCHDOG)


class TrainsInStep(Message, frozen=True):
    """Says that the program has made a strategy whose tasks take each step together: none of them can go on without the others."""

    contract = Contract(PROGRAM, WATCHDOG)


class Note(Message, frozen=True):
    """Carries a fact for the journal that only the program's process knows."""

    contract = Contract(PROGRAM, WATCHDOG)

    event: str
    fields: dict[str, str | int | float | bool | None]


class LogdirAdopted(Message, frozen=True):
    """Says whether the program's directory is the run's logdir now: `error` is not "" if it cannot be."""

    contract = Contract(WATCHDOG, PROGRAM)

    error: str


class AdoptLogdir(Message, frozen=True):
    """Asks to make `logdir`, which the program has named, the run's logdir, where nobody has said --logdir."""

    contract = Contract(PROGRAM, WATCHDOG, (LogdirAdopted,))

    logdir: str  # its real path


# -- watchdog -> trainer -----------------------------------------------------------------------------------
class StopTraining(Message, frozen=True):
    """Asks to stop at the next boundary, save and exit.

    A SIGTERM says the same.  A program without a session has no boundary and nothing to save: where the run ends, it is
    interrupted as by Ctrl-C.
    """

    contract = Contract(WATCHDOG, PROGRAM)

    grace_s: float
    reason: Reason
    ends_run: bool = False  # else the program is started again


class ServiceLost(Message, frozen=True):
    """Says that this service has died too often and will not be started again.

    Whoever waits for it is told at once.
    """

    contract = Contract(WATCHDOG, PROGRAM)

    service: TaskId
    why: str


class Inject(Message, frozen=True):
    """Orders a fault, because a plan of the user's says so.

    raise, exit (`number`: the code) and hang befall the next moment between two steps, or between two messages.  fill and
    drop last for `number` seconds: writing to the disk fails, messages that come in are dropped.
    """

    contract = Contract(WATCHDOG, PROGRAM | SERVICE)

    action: Literal["raise", "exit", "hang", "fill", "drop"]
    number: float


# -- command line -> watchdog ------------------------------------------------------------------------------
class Status(Message, frozen=True):
    """Carries the JSON object that `procsv status --json` prints."""

    contract = Contract(WATCHDOG, COMMAND_LINE, is_reliable=False)

    json: bytes


class StatusRequest(Message, frozen=True):
    """Asks for the status, which is answered at once, whatever the trainer does."""

    contract = Contract(COMMAND_LINE, WATCHDOG, (Status,))


class StopRun(Message, frozen=True):
    """Asks to end the run: exit 75 after a durable checkpoint."""

    contract = Contract(COMMAND_LINE, WATCHDOG)

    now: bool


class CannotRestart(Message, frozen=True):
    """Refuses a restart: the program was started by somebody else."""

    contract = Contract(WATCHDOG, COMMAND_LINE, is_reliable=False)


class RestartTrainer(Message, frozen=True):
    """Asks to save, end the trainer and start it again, free of charge."""

    contract = Contract(COMMAND_LINE, WATCHDOG, (CannotRestart,))


if TYPE_CHECKING:
    Body = Message
else:  # the decoder tells the classes apart by their names
    Body = Union[tuple(Message.__subclasses__())]  # noqa: UP007  there is no other way to spell a union of a list


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What every message travels in."""

    protocol: int
    run: str  # run id; a message of another run is dropped and counted
    task: TaskId  # the sender
    incarnation: int  # of the sender
    seq: int  # > 0: reliable, rising by one per sender and receiver
    re: int  # the seq that this answers or acknowledges; 0 if none
    body: Body
