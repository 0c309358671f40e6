"""Define the messages between the checkpoint service and the tasks whose state it saves.

They are pure data, bodies for messages.py.  Tensors never travel in messages: they are in slots
(slot_file.py), and messages name the slots.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from procsv.base.outcome import Source
from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.message import CHECKPOINT, PROGRAM, WATCHDOG, Contract, Message


class StateOffer(msgspec.Struct, frozen=True):
    """Offers a snapshot in memory to another machine, which fetches it through ipc/bulk.

    The sender creates the keys for this purpose.  They travel only on the run's own channels and
    are never stored in a file.
    """

    port: int  # on the sender's machine
    server_key: str  # the sender's public CURVE key, in Z85
    client_public: str  # the key pair for the receiver
    client_secret: str
    token: bytes  # identifies the offer
    size: int  # bytes of the slot, header and table of contents included
    sequence: int  # of the snapshot
    contents_hash: int  # xxh3_64 of the slot's table of contents, which holds the checksums of the tensors

    def __repr__(self) -> str:
        return f"StateOffer({self.sequence}, {self.size} bytes)"  # keys belong in no log


SavedKey = tuple[int, str, float]


# -- checkpoint service -> trainer and watchdog ------------------------------------------------------------
class Durable(Message, frozen=True):
    """Tells every peer that this state is on disk and verified, so it can be restored from now on.

    `run`, `incarnation` and `sequence` name the snapshot.  Only the attempt that took the snapshot
    counts this message as the end of its own save (`is_of`).  `sequence` is 0 if the program saved
    the state itself.  `all_paths` lists the run's own checkpoints that are kept now, oldest first.
    `time` distinguishes two saves with the same path.
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
        """Whether this attempt of this run took the snapshot.

        Each attempt has its own sequence numbers.
        """
        return (self.run, self.incarnation) == (run, incarnation)

    @property
    def key(self) -> SavedKey:
        """A key that all messages about one save share."""
        return self.sequence, self.path, self.time


class SaveFailed(Message, frozen=True):
    """Tells every peer that this save failed.  The last good checkpoint stays, and the service
    tries the newest state next.

    `run`, `incarnation` and `sequence` name the snapshot, as in Durable.  `retry_in`: seconds until
    the next try, which comes earlier if a peer asks for it.
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
    """Tells every peer that saving in the checkpoint directory is impossible, or works again.

    `error`: why it is impossible (the directory is gone, or read-only); "" when it works again.
    """

    contract = Contract(CHECKPOINT, PROGRAM | WATCHDOG)

    error: str


class Rejected(Message, frozen=True):
    """Tells every peer that a checkpoint or slot failed verification and was skipped."""

    contract = Contract(CHECKPOINT, PROGRAM | WATCHDOG)

    path: str
    why: str


# -- trainer -> checkpoint service -------------------------------------------------------------------------
# Saver's default for keep_checkpoint_every_n_hours in a CheckpointPlan; no run takes that long.
KEEP_NEVER_HOURS = 10_000.0


class CheckpointPlan(Message, frozen=True):
    """Says how to name and keep this run's checkpoints, before the program asks for anything else.

    `meta_path` is a file in shared memory with the serialized MetaGraphDef ("" for none).
    """

    contract = Contract(PROGRAM, CHECKPOINT)

    save_path: str  # logdir/basename; "-<step>" follows if there is a global step
    latest_filename: str
    save_secs: float  # interval of periodic checkpoints; 0 for none
    max_to_keep: int  # 0 keeps all
    keep_every_n_hours: float
    pad_step_number: bool
    save_relative_paths: bool
    meta_path: str
    keep_from: float = 0.0  # Unix seconds from which keep_every_n_hours counts; 0.0 if unknown
    lists_times: bool = False  # the `checkpoint` file lists when each was written, as tf.train.CheckpointManager's does
    is_mixed: bool = False  # other tasks change variables during a capture, so it may mix neighbouring steps


class RestoreFrom(Message, frozen=True):
    """Names the verified state to start from.

    If `source` is memory, `path` is the slot file to map; nobody will write to it again.  If the
    task is on another machine, `offer` says how to fetch the slot, and the member there puts the
    path of the fetched file into `path`.  If `source` is checkpoint, `path` is its prefix.  If
    `source` is fresh, there is no state, so the trainer initialises.

    If checkpoints exist and none is good, `error` is not "".  The trainer must then fail with that
    text instead of starting from step 0.  `sequence` is the highest known sequence number of a
    snapshot; the trainer counts on from there.
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

    `durable_only`: answer with a checkpoint, because the trainer cannot restore from memory (for
    example, because it has its own session manager).  `fetches`: the task is on another machine, so
    if the state is in memory, offer it for fetching.
    """

    contract = Contract(PROGRAM, CHECKPOINT, (RestoreFrom,))

    durable_only: bool
    fetches: bool = False


class Restored(Message, frozen=True):
    """Says that the state is in the session.

    If the state came from a slot, the trainer now maps that slot privately.  The service unlinks a
    fetched slot immediately.  It unlinks any other slot once the state is durable and the other
    tasks that train in step have it.
    """

    contract = Contract(PROGRAM, CHECKPOINT)


class Snapshot(Message, frozen=True):
    """Says that a slot is READY.

    The slot's header says the same.  `want`: why this state must be saved now; the answer then
    reports the result.  If `want` is "", the save interval decides when to save.
    """

    contract = Contract(PROGRAM, CHECKPOINT, (Durable, SaveFailed))

    sequence: int
    step: int
    want: Reason | Literal[""]


class Staged(Message, frozen=True):
    """Says that the program has written checkpoint `prefix` itself, into a staging directory.

    It does so for a state that no slot can hold, and if there is no shared memory.  From now on the
    service owns the directory: it verifies the files and moves them into place.  `want`: as in
    Snapshot.
    """

    contract = Contract(PROGRAM, CHECKPOINT, (Durable, SaveFailed))

    prefix: str
    sequence: int
    step: int
    want: Reason | Literal[""]


class UserSave(Message, frozen=True):
    """Says that the program has finished saving checkpoint `path` with the run's own Saver.

    Acknowledged once the checkpoint is verified and has its manifest, or is found unusable.  A scan
    of the directory would find the checkpoint, too, but could not tell which Saver wrote it.
    """

    contract = Contract(PROGRAM, CHECKPOINT)

    path: str


class FilePlaced(Message, frozen=True):
    """Says that the file of a parcel is in place and on disk.

    `error`: why the file could not be written; "" if it was.  The service retries until a newer
    file replaces it.
    """

    contract = Contract(CHECKPOINT, PROGRAM)

    path: str
    error: str


class PlaceFile(Message, frozen=True):
    """Asks to put the file in `parcel` in place.

    `parcel` is a file in shared memory, and says where its contents belong.  A service that starts
    finds left-over parcels without being asked.
    """

    contract = Contract(PROGRAM, CHECKPOINT, (FilePlaced,))

    parcel: str
