"""Define the plain data types that the parts of the checkpoint service share."""

from __future__ import annotations

import math

import msgspec

from procsv.base.run.manifest import FileSum, Manifest
from procsv.ipc.messaging.checkpoint_messages import Durable, Rejected
from procsv.ipc.shm.slot_state import SlotInfo


class WriteMismatch(Exception):
    """The written files differ from what was to be written.

    The text names the tensor or the file.
    """


class SavableState(msgspec.Struct, frozen=True):
    """A state that can be saved: in a slot, or staged as files by the trainer."""

    sequence: int
    step: int
    incarnation: int
    run: str
    slot: SlotInfo | None
    staged: str = ""  # the prefix of the staged files

    @staticmethod
    def of_slot(info: SlotInfo) -> SavableState:
        return SavableState(
            sequence=info.sequence, step=info.step, incarnation=info.incarnation, run=info.run, slot=info
        )

    @property
    def name(self) -> str:
        return str(self.slot.path) if self.slot is not None else self.staged


class DiskState(msgspec.Struct, frozen=True):
    """The checkpoints on disk when a plan arrives.

    The newest checkpoint is the one that a restore would take.  `newest_step` is its step, -1 if
    there is no checkpoint.  `newest_sequence` is its sequence, 0 if it is not ours.  `durable`
    describes the newest checkpoint if it is ours and was verified; otherwise it is None.  `kept`
    lists our own checkpoints that are kept now, oldest first.
    """

    newest_step: int
    top_sequence: int  # the highest in any manifest; higher if another machine may still be saving there
    durable: Durable | None
    kept: tuple[str, ...]
    run_began: float | None = None  # Unix seconds
    previous_owner: str = ""  # the run that used the directory before us, if the directory records it
    newest_sequence: int = 0
    newest_time: float = math.inf  # when another writer wrote the newest (Unix seconds); inf if it is ours


class Candidate(msgspec.Struct, frozen=True):
    """A checkpoint that the directory seems to hold.

    `step` and `sequence` are what its files claim.
    """

    path: str
    step: int
    sequence: int  # 0: not ours
    listed: bool  # in the `checkpoint` file


class FoundCheckpoint(msgspec.Struct, frozen=True):
    """The result of a search: a good checkpoint, or none."""

    checkpoint: Candidate | None
    kept: tuple[str, ...]
    rejected: tuple[Rejected, ...]
    error: str  # why every existing checkpoint is bad; "" if one is good, or if none exists


# (name, inode, size, time of change in ns) of each file of a checkpoint except its manifest
Signature = tuple[tuple[str, int, int, int], ...]


class Sighting(msgspec.Struct, frozen=True):
    """A checkpoint without a manifest of its own.

    Another writer has written it, or is still writing it.
    """

    path: str
    signature: Signature
    time: float  # when its index changed (Unix seconds)
    listed: bool  # in the `checkpoint` file


class Scan(msgspec.Struct, frozen=True):
    """The result of a scan.

    `trouble`: why nothing can be saved in the directory; "" if saves work.
    """

    external: tuple[Sighting, ...]
    newest_step: int | None  # of the checkpoint that would be restored; -1 if there is none, None if unknown
    trouble: str
    newest_sequence: int = 0  # 0 if that checkpoint is not ours
    newest_time: float = math.inf  # when another writer wrote it (Unix seconds); inf if it is ours


class Verified(msgspec.Struct, frozen=True):
    """The result of examining an external checkpoint.

    `error` says why the checkpoint is not good; it is "" if the checkpoint was read whole and
    synced.  `files` is empty if the checkpoint is unusable.  `files` is also empty, without an
    error, if the checkpoint changed while it was read.  `is_read` is False if the checkpoint could
    not be read; it may still be good.
    """

    path: str
    signature: Signature
    step: int
    files: dict[str, FileSum]
    time: float  # Unix seconds
    seconds: float  # how long it took
    error: str = ""
    is_read: bool = True


class AdoptionResult(msgspec.Struct, frozen=True):
    """The result of an adoption.

    `durable` is None if nothing was adopted.  For example, the checkpoint has changed, or another
    Saver holds the lock.
    """

    examined: Verified
    own: bool  # saved by the supervised Saver
    durable: Durable | None
    is_latest: bool = False  # the `checkpoint` file names the adopted checkpoint as the latest


def durable_of(manifest: Manifest, path: str, seconds: float, kept: tuple[str, ...]) -> Durable:
    return Durable(
        sequence=manifest.sequence,
        step=manifest.step,
        incarnation=manifest.incarnation,
        path=path,
        reason=manifest.reason,
        bytes=manifest.bytes,
        seconds=seconds,
        all_paths=kept,
        time=manifest.time,
        run=manifest.run,
    )
