"""Types that the parts of the checkpoint service share.  Plain data."""

from __future__ import annotations

import msgspec

from procsv.base.run.manifest import FileSum, Manifest
from procsv.ipc.messaging.checkpoint_messages import Durable, Rejected
from procsv.ipc.shm.slot_state import SlotInfo


class WriteMismatch(Exception):
    """What was written is not what lies in the slot.  The text names the tensor or the file."""


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
    """What is on disk when a plan arrives."""

    newest_step: int  # of the checkpoint that would be restored; -1 if there is none
    top_sequence: int  # the highest that any manifest tells of
    durable: Durable | None  # that checkpoint, if it is ours and was verified
    kept: tuple[str, ...]
    run_began: float | None = None  # Unix seconds
    run_before: str = ""  # that had the directory before us, if the directory tells
    newest_sequence: int = 0  # of the newest checkpoint; 0: none of ours


class Candidate(msgspec.Struct, frozen=True):
    """A checkpoint that the files speak of; its step and sequence are what they claim."""

    path: str
    step: int
    sequence: int  # 0: not ours
    listed: bool  # in the `checkpoint` file


class FoundCheckpoint(msgspec.Struct, frozen=True):
    """What a search came to: a good checkpoint, or none."""

    checkpoint: Candidate | None
    kept: tuple[str, ...]
    rejected: tuple[Rejected, ...]
    error: str  # why there is none although something exists; "" otherwise


# (name, inode, size, time of change in ns) of each file of a checkpoint but its manifest
Signature = tuple[tuple[str, int, int, int], ...]


class Sighting(msgspec.Struct, frozen=True):
    """A checkpoint that has no manifest, or another one's: somebody else has written it, or is about to."""

    path: str
    signature: Signature
    time: float  # of its index (Unix seconds)
    listed: bool  # in the `checkpoint` file


class Scan(msgspec.Struct, frozen=True):
    """What a scan of the directory shows.  `trouble`: it is gone or cannot be written to."""

    external: tuple[Sighting, ...]
    newest_step: int | None  # of the checkpoint that would be restored; -1 if there is none, None: nobody knows
    trouble: str
    newest_sequence: int = 0  # 0: none of ours


class Verified(msgspec.Struct, frozen=True):
    """An external checkpoint that was read whole and is on the disk; or `error` says why it is not."""

    path: str
    signature: Signature
    step: int
    files: dict[str, FileSum]  # empty if it is of no use, or (without an error) has changed meanwhile
    time: float  # Unix seconds
    seconds: float  # that it took
    error: str = ""
    is_read: bool = True  # False: it could not be read, which says nothing of what it holds


class AdoptionResult(msgspec.Struct, frozen=True):
    """The result of an adoption; `durable` None: it has changed, or another Saver holds the lock."""

    examined: Verified
    own: bool  # the supervised Saver's
    durable: Durable | None
    is_latest: bool = False


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
