"""What the parts of the checkpoint service tell each other.  Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from procsv.ipc.arena import SlotInfo
from procsv.ipc.messages import Durable


class WriteMismatch(Exception):
    """What was written is not what lies in the slot.  The text names the tensor or the file."""


@dataclass(frozen=True, slots=True)
class State:
    """A state that can be saved: in a slot, or staged as files by the trainer."""

    sequence: int
    step: int
    incarnation: int
    run: str
    slot: SlotInfo | None
    staged: str = ""  # the prefix of the staged files

    @staticmethod
    def of_slot(info: SlotInfo) -> State:
        return State(info.sequence, info.step, info.incarnation, info.run, info)

    @property
    def name(self) -> str:
        return str(self.slot.path) if self.slot is not None else self.staged


@dataclass(frozen=True, slots=True)
class Stock:
    """What is on disk when a plan arrives."""

    newest_step: int  # of the checkpoint that would be restored; -1 if there is none
    top_sequence: int  # the highest that any manifest tells of
    durable: Durable | None  # that checkpoint, if it is ours and was verified
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint that the files speak of; its step and sequence are what they claim."""

    path: str
    step: int
    sequence: int  # 0: not ours
    listed: bool  # in the `checkpoint` file


@dataclass(frozen=True, slots=True)
class Rejection:
    """A checkpoint that was passed over."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to: a good checkpoint, or none."""

    checkpoint: Candidate | None
    kept: tuple[str, ...]
    rejected: tuple[Rejection, ...]
    exists: bool
    error: str  # why there is none although something exists; "" otherwise
