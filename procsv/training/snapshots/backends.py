"""The two ways in which a snapshot leaves the trainer: through a slot, or by the Saver's own op.

Called by the snapshotter, which decides when.  A run takes one way, chosen at its start and logged once.

SlotBackend      capture between two steps, copy in the background, publish in shared memory
SaverBackend   the Saver's own op writes into a staging directory on the shared-memory filesystem, on the training
             thread; for Savers that no slot can serve, and where no slot can be had
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import tensorflow as tf

from procsv.base.failpoints import declare, failpoint
from procsv.base.run.paths import make_private_dir
from procsv.ipc.messaging.messages import CheckpointPlan, Message, Reason, Snapshot, Staged
from procsv.ipc.shm.slot_file import HEADER_BYTES, SLOTS_DEFAULT, SlotPool, SlotWriter
from procsv.training.graph.capture import Capture, Taken
from procsv.training.runtime.context import current
from procsv.training.snapshots.progress import StepReader
from procsv.training.snapshots.slot_fill import fill_and_publish

PAGE_BYTES = 4096
SPARE_SHARE_MAX = 1 / 16  # of the free shared memory: a slot up to this size is reserved once more

Want = Reason | Literal[""]

declare("trainer.capture")


def always() -> bool:
    return True


class SnapshotBackend(Protocol):
    """How a snapshot is taken.  `capture` runs with the training thread between two calls."""

    def reserve(self) -> None:
        """Gets the memory that is needed; NoRoom if it cannot be had.  May take seconds; needs no session."""

    def warm_up(self, session: Any) -> None:
        """Makes the first snapshot cost what the others do."""

    def prepare(self) -> None:
        """Does what of the next `capture` can be done while training goes on.  Any thread."""

    def saved_tensors(self) -> list[Any] | None:
        """What `capture` reads; None where the Saver's own op decides."""

    def capture(
        self, session: Any, sequence: int, want: Want, is_whole: Callable[[], bool] = ...
    ) -> Callable[[], Message] | None:
        """Takes the state; what it returns finishes the work off the training thread and gives the message.

        None if there is no room for it now, or if `is_whole`, asked when it is taken, says that it may be torn.
        """

    def close(self) -> None: ...


def slots_for(size: int, shm_dir: Path) -> int:
    """How many slots to reserve: a spare one if it is cheap.

    With two, no snapshot can be taken while the service saves one: the other is the newest, which must stay.
    """
    there = os.statvfs(shm_dir)
    is_cheap = size <= SPARE_SHARE_MAX * there.f_bavail * there.f_frsize
    return SLOTS_DEFAULT + 1 if is_cheap else SLOTS_DEFAULT


@dataclass(slots=True)
class SlotBackend:
    """Capture and copy through shared memory."""

    pool: SlotPool
    saved: Capture
    plan: CheckpointPlan
    is_named: bool  # checkpoints carry the step in their name
    target: str
    never: frozenset[str] = frozenset()  # slots that the session's state came from: never to be written
    _next: SlotWriter | None = None  # begun ahead of its capture
    _beginning: threading.Lock = field(default_factory=threading.Lock)

    def reserve(self) -> None:
        contents_size = 4096 + 2 * sum(64 + len(item.key) + len(item.slice) for item in self.saved.distinct)
        size = self.saved.layout.end - HEADER_BYTES + contents_size
        self.pool.reserve(size, slots_for(size, self.pool.shm_dir), never=self.never)
        for memory in self.pool.memories():
            np.frombuffer(memory, np.uint8)[HEADER_BYTES::PAGE_BYTES] = 0  # the first touch is slow: not in a step

    def warm_up(self, session: Any) -> None:
        self.saved.warm_up(session)

    def prepare(self) -> None:
        with self._beginning:
            self._next = self._next or self.pool.begin()

    def saved_tensors(self) -> list[Any] | None:
        return [item.tensor for item in self.saved.distinct]

    def capture(
        self, session: Any, sequence: int, want: Want, is_whole: Callable[[], bool] = always
    ) -> Callable[[], Message] | None:
        """None if the service still reads every slot but the newest READY one."""
        with self._beginning:
            writer, self._next = self._next or self.pool.begin(), None
        if writer is None:
            return None
        failpoint("trainer.capture")
        try:
            taken = self.saved.run(session, writer.memory)
        except BaseException:
            writer.abandon()
            raise
        if not is_whole():
            writer.abandon()
            return None
        return lambda: self._publish(writer, taken, sequence, want)

    def _publish(self, writer: SlotWriter, taken: Taken, sequence: int, want: Want) -> Message:
        try:
            info = fill_and_publish(writer, self.saved, taken, self.plan, sequence, self.is_named, self.target)
        except BaseException:
            writer.abandon()
            raise
        return Snapshot(str(info.path), sequence, info.step, want)

    def close(self) -> None:
        self.saved.forget()
        if self._next is not None:
            self._next.abandon()
            self._next = None
        self.pool.close()


def _checkpoint_in(directory: Path) -> Path:
    """The one checkpoint in `directory`, for Savers whose `save` does not say what it wrote."""
    for index in directory.glob("*.index"):
        return index.with_suffix("")
    raise FileNotFoundError(f"the Saver has left no checkpoint in {directory}")


@dataclass(slots=True)
class SaverBackend:
    """The Saver's own op, into a directory that the checkpoint service takes over.

    It lies in the first of `directories` that has room (shared memory, then the logdir's disk), and one that had none
    is not tried again.
    """

    saver: Any
    directories: list[Path]
    plan: CheckpointPlan
    global_step: Any

    def reserve(self) -> None: ...

    def warm_up(self, session: Any) -> None: ...

    def prepare(self) -> None: ...

    def saved_tensors(self) -> list[Any] | None:
        return None

    def capture(
        self, session: Any, sequence: int, want: Want, is_whole: Callable[[], bool] = always
    ) -> Callable[[], Message] | None:
        step, runtime = StepReader(session, self.global_step).read(), current()
        while True:
            directory = self.directories[0] / f"staged.{sequence}"
            try:
                with contextlib.nullcontext() if runtime is None else runtime.saving():
                    prefix = self._save(session, directory, step)
            except (tf.errors.OpError, OSError):
                shutil.rmtree(directory, ignore_errors=True)
                if len(self.directories) == 1:
                    raise
                del self.directories[0]
            else:
                return lambda: Staged(prefix, sequence, step, want)

    def _save(self, session: Any, directory: Path, step: int) -> str:
        make_private_dir(directory)
        prefix = self.saver.save(  # killed in here: a directory without an index, which nobody takes for a checkpoint
            session,
            str(directory / Path(self.plan.save_path).name),
            global_step=step if step >= 0 else None,
            latest_filename="staged",
            write_state=False,
        )
        return str(prefix or _checkpoint_in(directory))

    def close(self) -> None: ...
