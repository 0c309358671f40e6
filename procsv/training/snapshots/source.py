"""The seam: a source of state, which is whatever a training process trains.

Everything in this package is done for a StateSource and knows nothing else of it.  A graph session is one
(training/graph/state.py); the state is what its checkpoints hold.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.training.snapshots.boundary import Boundary
from procsv.training.snapshots.slot_layout import SlotLayout


class CheckpointEntry(msgspec.Struct, frozen=True):
    """One entry of the checkpoint."""

    key: str
    slice: str  # shape_and_slice as SaveV2 takes it; "" for a whole tensor
    dtype: str  # TensorFlow's name
    number: int  # of the captured array that holds it; what is saved under two keys is captured once


class StateSpec(msgspec.Struct, frozen=True):
    """What a snapshot of a source holds, and how its checkpoint is written."""

    plan: CheckpointPlan  # how checkpoints are named and kept
    sharded: bool
    shards: tuple[tuple[CheckpointEntry, ...], ...]
    sizes: list[int | None]  # bytes of each captured array; None: not known beforehand
    layout: SlotLayout  # of the arrays in a slot
    has_step: bool  # checkpoints have the step in their names

    @property
    def toc_size(self) -> int:
        """Bytes that the table of contents takes, at most."""
        return 4096 + 2 * sum(64 + len(item.key) + len(item.slice) for shard in self.shards for item in shard)


class RemoteArrays(msgspec.Struct, frozen=True):
    """What other processes have captured, and copy into the slot themselves."""

    numbers: frozenset[int]  # of the arrays; the capture has their shapes
    copy: Callable[
        [], dict[int, int]
    ]  # has them do it, off the training thread; the xxh3_64 of each array's bytes, by number


class Captured(msgspec.Struct):
    """What one capture took: arrays by number, and the global step (-1: there is none)."""

    arrays: list[Any]  # numpy arrays (see `view`) that do not change any more; of a copied one only the shape is kept
    copied: list[bool]  # True: the bytes are in the slot already
    step: int
    spec: StateSpec | None = None  # what the arrays are, where that changes from capture to capture
    number: int | None = None  # in the checkpoint's name; None: the step, if the spec has one
    view: Callable[[list[Any]], list[Any]] | None = None  # makes the arrays of what was taken, off the training thread
    elsewhere: RemoteArrays | None = None
    logged: dict[str, int] = {}  # bytes of the program's event files that belong to the state, by name
    is_exact: bool = False  # whatever the plan says of mixing: no other task has changed it meanwhile


class CaptureLost(Exception):
    """Part of what was captured elsewhere is not to be had: it is captured anew, in another way.  The text says why."""


class CannotRestore(Exception):
    """The state in memory does not fit this source; its checkpoint may.  The text says why."""


class StateSource(Protocol):
    """What is captured, and how it is put back.  Members with a body are a source's own choice."""

    spec: StateSpec | None  # None: no slot can hold the state; then `save_to` writes every checkpoint
    errors: tuple[type[Exception], ...]  # what its calls raise, besides RuntimeError, where the state cannot be read
    captures_views: bool = False  # a capture needs no slot

    def attach(self, boundary: Boundary) -> None:
        """From here on the steps of the training thread pass `boundary`."""

    def read_step(self) -> int:
        """The global step now; -1 if there is none.  Any thread, at any time; never passes the boundary."""

    def count_on_from(self, step: int) -> bool:
        """The state is of `step` (-1: a fresh one).  Whether the source counts its calls, for want of a global step."""
        return False

    def warm_up(self) -> None:
        """Makes the first capture cost what the others do.  On the training thread, before the first step."""

    def capture(self, into: mmap.mmap | None) -> Captured:
        """The state now.  At the boundary: views that stay as they are while training goes on, or copies in the slot `into`.

        `into` is None only where a source `captures_views`.
        """

    def restore(self, state: SlotReader | str) -> None:
        """Puts back what lies in a slot, or in the checkpoint of this path.  CannotRestore if the slot's does not fit.

        Of a slot the mapping may go on being used; nobody else writes to it.
        """

    def may_change(self) -> bool:
        """Whether the call under way at the boundary can change what is captured."""
        return True

    def has_restored(self) -> bool:
        """Whether the call that has just ended put back a state of the program's own."""
        return False

    def save_to(self, directory: Path, step: int) -> str:
        """Writes a checkpoint of the state of `step` into the empty `directory`, at the boundary; its path."""

    def keep_files(self) -> None:
        """Puts back what its checkpoints need besides a slot, if somebody has removed it.  Any thread, every few seconds."""
        return

    def count_calls(self) -> int:
        """Rises with what the training thread does besides passing the boundary: progress for the heartbeat."""
        return 0

    def is_closed(self, error: Exception) -> bool:
        """Whether `error` says that there is nothing left to read, for good."""
        return False

    def close(self) -> None:
        """Nothing of ours touches the source any more."""
