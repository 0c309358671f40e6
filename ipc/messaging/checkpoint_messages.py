"""Messages between the checkpoint service and those whose state it saves.

Pure data, bodies of messages.py.  Tensors never travel here: they lie in slots (slot_file.py), and messages name them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from procsv.base.outcome import Source
from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.message import CHECKPOINT, PROGRAM, WATCHDOG, Contract, Message


class StateOffer(msgspec.Struct, frozen=True):
    """Offers a snapshot in memory to another machine, which fetches it by ipc/bulk.

    The keys are made for the service that offers it, and travel on the run's own channels alone; they are in no file.
    """

    port: int  # of the coordinator's machine
    server_key: str  # of CURVE, in Z85: the sender's public one
    client_public: str  # and the pair for whoever fetches
    client_secret: str
    token: bytes  # which offer it is
    size: int  # bytes of the slot, header and table of contents included
    sequence: int  # of the snapshot
    contents_hash: int  # xxh3_64 of the slot's table of contents, which has the checksums of the tensors

    def __repr__(self) -> str:
        return f"StateOffer({self.sequence}, {self.size} bytes)"  # keys belong in no log


SavedKey = tuple[int, str, float]


# -- checkpoint service -> trainer and watchdog ------------------------------------------------------------
class Durable(Message, frozen=True):
    """Tells every peer that this state is on disk and verified: it can be restored from now on.

    `run`, `incarnation` and `sequence` name the snapshot; only the attempt that took it counts its save as done (`is_of`).
    `sequence` 0: no snapshot of ours, the program's own save.  `all_paths`: the run's own checkpoints that are kept now, oldest
    first.  `time` tells one save from another.
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
    run: str = ""

    def is_of(self, run: str, incarnation: int) -> bool:
        """Whether this attempt of this run took the snapshot: the numbers of other attempts say nothing about its own."""
        return (self.run, self.incarnation) == (run, incarnation)

    @property
    def key(self) -> SavedKey:
        """The same for all that is said of one save."""
        return self.sequence, self.path, self.time


class SaveFailed(Message, frozen=True):
    """Tells every peer that this save failed; the last good checkpoint stands, and the newest state is tried again.

    `run`, `incarnation` and `sequence` name the snapshot, as in Durable.  `retry_in`: seconds until the next try, unless somebody
    asks for one.
    """

    contract = Contract(CHECKPOINT, PROGRAM | WATCHDOG)

    sequence: int
    step: int
    error: str
    retry_in: float = 0.0
    incarnation: int = 0
    run: str = ""

    def is_of(self, run: str, incarnation: int) -> bool:
        """Whether this attempt of this run took the snapshot."""
        return (self.run, self.incarnation) == (run, incarnation)


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
