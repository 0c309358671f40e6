"""State of an eager program: all that a tf.train.Checkpoint tracks, as a source of state.

Made by a controller of this room.  A snapshot holds what `Checkpoint.write` would write at that moment; its checkpoint is
the same file, byte for byte.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.training.eager import replicas
from procsv.training.eager.capture import Reader, make_arrays
from procsv.training.eager.event_files import EventFiles
from procsv.training.eager.object_graph import Cannot, ObjectGraph
from procsv.training.eager.restore import check_slot, restore_from_slot, restore_own
from procsv.training.runtime.log import log
from procsv.training.snapshots.boundary import Boundary
from procsv.training.snapshots.source import CannotRestore, Captured, StateSource, StateSpec


class EagerState(StateSource):
    """The state of `checkpoint`'s objects."""

    errors: tuple[type[Exception], ...] = (tf.errors.OpError, ValueError)
    captures_views = True

    def __init__(
        self,
        checkpoint: Any,
        plan: CheckpointPlan,
        number: Callable[[], int],
        read_step: Callable[[], int] | None = None,
        events: EventFiles | None = None,
    ) -> None:
        """`number`: in the name of the checkpoint of a snapshot that is taken now.

        `read_step`: the step by a counter of the program's; None: the steps that pass the boundary are counted.
        """
        self._checkpoint, self._plan, self._number, self._read_step = checkpoint, plan, number, read_step
        self._events = events  # of the program, which are cut back with the state
        self._graph: ObjectGraph | None = None
        self._reader: Reader | None = None
        self._boundary: Boundary | None = None
        self._steps_before = 0
        self.spec: StateSpec | None = None
        try:
            self.current()
        except Cannot as why:
            log.info("procsv: checkpoints are written by TensorFlow on the training thread: %s", why)
            replicas.warn_of_one_value(checkpoint, str(why))

    def current(self) -> tuple[ObjectGraph, Reader, StateSpec]:
        """The object graph as it is now, and how it is read."""
        if self._graph is None or self._reader is None or self.spec is None or not self._graph.is_current():
            self._graph = ObjectGraph(self._checkpoint)
            self._reader, self.spec = Reader(self._graph), self._graph.spec(self._plan)
        return self._graph, self._reader, self.spec

    def attach(self, boundary: Boundary) -> None:
        self._boundary = boundary

    def read_step(self) -> int:
        if self._read_step is not None:
            return self._read_step()
        return self._steps_before + (self._boundary.runs if self._boundary is not None else 0)

    def count_on_from(self, step: int) -> bool:
        self._steps_before = max(step, 0)
        return self._read_step is None

    def warm_up(self) -> None:
        if self.spec is not None:
            graph, reader, _ = self.current()
            reader.read()  # the first call of an op costs milliseconds, the later ones do not
            replicas.warn_of_tasks(graph)

    def capture(self, into: mmap.mmap | None) -> Captured:
        try:
            graph, reader, spec = self.current()
        except Cannot as why:
            raise RuntimeError(f"{why}: save it with tf.train.Checkpoint.write") from None
        values = reader.read()
        copied = [False] * len(spec.sizes)
        logged = {} if self._events is None else self._events.read_sizes()
        captured = Captured(values, copied, self.read_step(), spec, self._number(), make_arrays, logged=logged)
        if graph.per_replica:
            replicas.add_differing(graph.per_replica, captured, make_arrays)
        return captured

    def restore(self, state: SlotReader | str) -> None:
        self._restore(state)
        if self._events is not None:
            self._events.restored(state)

    def goes_on_from(self, path: str) -> None:
        """The program has restored this checkpoint by itself."""
        with contextlib.suppress(Cannot):
            replicas.check_put_back(self._checkpoint, self.current()[0], path)
        if self._events is not None:
            self._events.restored(path)

    def _restore(self, state: SlotReader | str) -> None:
        if isinstance(state, str):
            log.info("Restoring from %s", state)
            self._checkpoint.read(state)  # `restore` would attach a counter of saves to objects that have none
            with contextlib.suppress(Cannot):
                restore_own(state, self.current()[0])
                replicas.put_back_from_file(self.current()[0], state)
            return
        try:
            graph = self.current()[0]
        except Cannot as why:
            raise CannotRestore(str(why)) from None
        restore_from_slot(state, graph)

    def check_slot(self, reader: SlotReader) -> None:
        """CannotRestore if the slot cannot be put back."""
        try:
            check_slot(reader, self.current()[0])
        except Cannot as why:
            raise CannotRestore(str(why)) from None

    def save_to(self, directory: Path, step: int) -> str:
        name = f"{Path(self._plan.save_path).name}-{self._number()}"
        try:
            graph, reader, _ = self.current()
        except Cannot:
            path = str(self._checkpoint.write(str(directory / name)))
        else:
            values = reader.read_variables() if graph.per_replica else []
            path = replicas.write_whole(self._checkpoint.write, graph.per_replica, values, directory / name)
        if not Path(f"{path}.index").exists():
            raise OSError(f"{type(self._checkpoint).__name__}.write() has not written {path} when it returns")
        return path

    def close(self) -> None:
        self._graph = self._reader = None
