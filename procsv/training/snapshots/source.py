"""The interface of a state source: anything that a training process trains.

This package works for any StateSource and knows nothing else about it.  A graph session is one
(training/graph/state.py): its state is what its checkpoints hold.
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
    """One entry of a checkpoint."""

    key: str
    slice: str  # shape_and_slice for SaveV2; "" for a whole tensor
    dtype: str  # TensorFlow's name
    number: int  # of the captured array; an array saved under two keys is captured once


class StateSpec(msgspec.Struct, frozen=True):
    """What a snapshot of a source holds, and how to write its checkpoint."""

    plan: CheckpointPlan  # how checkpoints are named and kept
    sharded: bool  # written as several files, as by a sharded Saver
    shards: tuple[tuple[CheckpointEntry, ...], ...]
    sizes: list[int | None]  # bytes of each captured array; None: unknown in advance
    layout: SlotLayout  # of the arrays in a slot
    has_step: bool  # checkpoints have the step in their names

    @property
    def toc_size(self) -> int:
        """The most bytes that the table of contents takes."""
        return 4096 + 2 * sum(64 + len(item.key) + len(item.slice) for shard in self.shards for item in shard)


class RemoteArrays(msgspec.Struct, frozen=True):
    """Arrays that other processes have captured, and copy into the slot themselves."""

    numbers: frozenset[int]  # of the arrays; the capture has their shapes
    # Makes the other processes copy; called off the training thread.  Returns the xxh3_64 of each array's bytes, by
    # number.
    copy: Callable[[], dict[int, int]]


class Captured(msgspec.Struct):
    """The result of one capture: arrays by number, and the global step (-1 if there is none)."""

    # numpy arrays that no longer change, or what `view` makes them from; for a copied array, only its shape
    arrays: list[Any]
    copied: list[bool]  # True: the bytes are already in the slot
    step: int
    spec: StateSpec | None = None  # describes the arrays, if that differs between captures
    number: int | None = None  # in the checkpoint's name; None: the step, if the spec's `has_step` says so
    view: Callable[[list[Any]], list[Any]] | None = None  # makes the arrays from the capture, off the training thread
    elsewhere: RemoteArrays | None = None
    logged: dict[str, int] = {}  # bytes of the program's event files that belong to the state, by name
    logged_s: float = 0.0  # when `logged` was read, in Unix seconds; 0: the lengths are unknown
    is_exact: bool = False  # no other task changed the state during this capture, although the plan says `is_mixed`


class CaptureLost(Exception):
    """Part of a remote capture is gone, so the state is captured again, in another way.

    The text says why.
    """


class CannotRestore(Exception):
    """The state in memory does not fit this source; its checkpoint may.  The text says why."""


class StateSource(Protocol):
    """Captures and restores a state.

    A source defines all members that have no default here, and may override the others.
    """

    spec: StateSpec | None  # None: no slot can hold the state; then `save_to` writes every checkpoint
    errors: tuple[type[Exception], ...]  # raised, besides RuntimeError, if the state cannot be read
    captures_views: bool = False  # a capture needs no slot

    def attach(self, boundary: Boundary) -> None:
        """Makes the training thread's steps pass `boundary`."""

    def read_step(self) -> int:
        """Reads the global step; -1 if there is none.

        Any thread may call it at any time.  It never passes the boundary.
        """

    def count_on_from(self, step: int) -> bool:
        """Sets the step of the state (-1: fresh), from which a source without a global step counts.

        Returns whether the source counts its calls as steps, for lack of a global step.
        """
        return False

    def warm_up(self) -> None:
        """Does one-time work, so that the first capture costs no more than later ones.

        Called on the training thread before the first step.
        """

    def capture(self, into: mmap.mmap | None) -> Captured:
        """Captures the state at the boundary.

        The result holds views that do not change while training continues, or copies in the slot
        `into`.  `into` is None only if the source `captures_views`.
        """

    def restore(self, state: SlotReader | str) -> None:
        """Restores the state from a slot, or from the checkpoint at this path.

        Raises CannotRestore if the slot's state does not fit.  The source may keep using the slot's
        mapping: nobody else writes to it.
        """

    def may_change(self) -> bool:
        """Whether the training thread's present call can change the state that a capture reads."""
        return True

    def has_restored(self) -> bool:
        """Whether the call that has just ended restored a state of the program's own."""
        return False

    def save_to(self, directory: Path, step: int) -> str:
        """Writes a checkpoint of the state at `step` into `directory`, and returns its path.

        The directory is empty.  Called at the boundary.
        """

    def keep_files(self) -> None:
        """Restores removed files that a checkpoint needs in addition to the slot.

        Called on any thread, every few seconds.
        """
        return

    def count_calls(self) -> int:
        """Counts what the training thread does besides passing the boundary.

        The heartbeat shows it as progress.
        """
        return 0

    def is_closed(self, error: Exception) -> bool:
        """Whether `error` says that the source is closed and can never be read again."""
        return False

    def close(self) -> None:
        """Releases the source; procsv no longer touches it."""
