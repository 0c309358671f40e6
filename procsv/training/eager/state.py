"""Capture and restore all that a tf.train.Checkpoint tracks, as the state of an eager program.

A manager or a fit makes an EagerState when its training starts. A snapshot holds what
`Checkpoint.write` would write at that moment. The checkpoint made from it is equal to that file,
byte for byte.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.shm.slot_index import TensorEntry, unpack_strings
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.training.eager import private, replicas
from procsv.training.eager.event_files import EventFiles
from procsv.training.eager.object_graph import (
    READ_MAX,
    CannotCapture,
    ObjectGraph,
    Tracked,
    array_of,
    variant_tensor,
    view_of,
)
from procsv.training.runtime.log import log, say_once
from procsv.training.snapshots.boundary import Boundary
from procsv.training.snapshots.source import CannotRestore, Captured, StateSource, StateSpec

NAMED_MAX = 3  # variables in a message


# -- from a slot, without copying what a variable holds ----------------------------------------------------------
# Through DLPack, a variable shares the slot's memory until its first update. A slot may have values of objects that the
# program has not made yet, such as the slot variables of an optimizer. Only TensorFlow can defer the restore of a value
# until its object exists, and TensorFlow reads values only from a checkpoint's files. So procsv does not use such a
# slot, and restores the same state from its checkpoint on disk.
def restore_from_slot(reader: SlotReader, graph: ObjectGraph) -> None:
    """Restore all values of `graph` from a slot.

    If the slot's entries are not exactly those of `graph`, raise CannotRestore before any value
    changes.
    """
    entries = check_slot(reader, graph)
    owners: dict[int, list[Tracked]] = {}
    for number in graph.others:
        owners.setdefault(id(graph.tracked[number].owner), []).append(graph.tracked[number])
    for items in owners.values():
        values = {private.extract_local_name(i.key): _tensor(entries[i.key, i.slice], reader) for i in items}
        _restore_object(items[0].owner, values)
    for item in graph.tracked:
        for variable in (item.variable, *item.copies) if item.variable is not None else ():
            replicas.assign(variable, _tensor(entries[item.key, item.slice], reader))
    besides = {e.key: e for shard in reader.contents.shards for e in shard if replicas.is_of_replica(e.key)}
    replicas.put_back_replicas(graph, besides, lambda key: _tensor(besides[key], reader))


def restore_own(path: str, graph: ObjectGraph) -> None:
    """Give all replicas of this task the saved value of each variable in `graph.own`.

    TensorFlow's restore assumes that such a value combines the values of all tasks, and divides it
    among the replicas. So this function must run after TensorFlow's restore.
    """
    saved = tf.train.load_checkpoint(path) if graph.own else None
    for item in graph.own:
        if saved is not None and saved.has_tensor(item.key):
            for variable in (item.variable, *item.copies):
                replicas.assign(variable, tf.constant(saved.get_tensor(item.key), variable.dtype.base_dtype))


def _restore_object(owner: Any, values: dict[str, Any]) -> None:
    if isinstance(owner, tf.train.experimental.PythonState):
        (text,) = values.values()
        owner.deserialize(text.numpy())
    else:
        owner._restore_from_tensors(values)


def check_slot(reader: SlotReader, graph: ObjectGraph) -> dict[tuple[str, str], TensorEntry]:
    """Return the slot's entries. Raise CannotRestore unless they are exactly the graph's.

    A key is the path to its object, so equal keys mean equal objects.
    """
    entries = {
        (e.key, e.slice): e for shard in reader.contents.shards for e in shard if not replicas.is_of_replica(e.key)
    }
    if entries.pop((private.GRAPH_KEY, ""), None) is None:
        raise CannotRestore("it holds no objects")
    now = {(item.key, item.slice): item for item in graph.tracked}
    if later := sorted(key for key, _ in entries.keys() - now.keys()):
        raise CannotRestore(f"{len(later)} of its values belong to objects that are not made yet ({later[0]})")
    if new := sorted(key for key, _ in now.keys() - entries.keys()):
        raise CannotRestore(f"it lacks {len(new)} of the program's values ({new[0]})")
    for key, item in now.items():
        entry = entries[key]
        if item.dtype != entry.dtype:
            raise CannotRestore(f"{item.key} is {item.dtype}, and was {entry.dtype}")
        if item.variable is not None and not item.variable.shape.is_compatible_with(entry.shape):
            raise CannotRestore(f"{item.key} is of shape {item.variable.shape}, and was of {entry.shape}")
        if item.variable is None and (item.slice or not hasattr(type(item.owner), "_restore_from_tensors")):
            raise CannotRestore(f"{item.key} is restored by TensorFlow alone")
    return entries


def _tensor(entry: TensorEntry, reader: SlotReader) -> Any:
    if entry.dtype == "variant":
        return variant_tensor(_packed(entry, reader), entry.shape)
    if entry.dtype == "string":
        return tf.constant(_packed(entry, reader), tf.string, shape=entry.shape)
    dtype = tf.as_dtype(entry.dtype)
    numpy_dtype = np.dtype(dtype.as_numpy_dtype)
    plain = numpy_dtype if numpy_dtype.isbuiltin == 1 else np.dtype(f"u{numpy_dtype.itemsize}")
    array = np.frombuffer(reader.map, plain, entry.size // plain.itemsize, entry.offset).reshape(entry.shape)
    if not array.size or plain is not numpy_dtype or dtype == tf.bool:
        return tf.constant(array.view(numpy_dtype), dtype)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())  # shares the memory of the private mapping


def _packed(entry: TensorEntry, reader: SlotReader) -> list[bytes]:
    return unpack_strings(reader.map[entry.offset : entry.offset + entry.size])


def warn_of_left_out(names: list[str]) -> None:
    """Report variables of Keras' layers that TensorFlow does not restore in time."""
    if names:
        say_once(
            f"a restart does not restore {len(names)} variable{'s' * (len(names) > 1)} of Keras "
            f"({', '.join(names[:NAMED_MAX])}{', …' * (len(names) > NAMED_MAX)}): a tf.train.Checkpoint does not find "
            "random seeds, nor layers in a list or a dict. Build the model, then add this argument to the Checkpoint: "
            "rest=[variable.value for variable in model.variables]"
        )


class Reader:
    """Reads the variables of one object graph, as views of TensorFlow's own buffers.

    Use it on the training thread only. A read shares the buffer of a resource variable, and an
    update leaves a buffer alone while something else holds it. So a capture costs one call for a
    hundred variables, whatever their size. Once a variable was updated in single rows, as an
    embedding is, each read may copy it. The Reader detects such variables and turns the copies off.
    """

    def __init__(self, graph: ObjectGraph) -> None:
        self._graph = graph
        of_replicas = [pair for one in graph.per_replica for pair in zip(one.numbers, one.variables, strict=True)]
        self.variables = [*graph.variables, *of_replicas]  # pairs of a value's number and its variable
        self._count = len(graph.tracked) + 1 + len(of_replicas)
        by_device: dict[str, list[tuple[int, Any]]] = {}
        for number, variable in self.variables:
            by_device.setdefault(variable.handle.device, []).append((number, variable))
        # For each call: numbers, handles and dtypes of the variables that it reads.
        self._calls = [
            ([n for n, _ in part], [v.handle for _, v in part], [v.dtype.base_dtype for _, v in part])
            for pairs in by_device.values()
            for part in (pairs[at : at + READ_MAX] for at in range(0, len(pairs), READ_MAX))
        ]
        self._copying: dict[int, Any] = {}  # by number, the handles of variables that copy when they are read
        self._reads = 0

    def read_values(self) -> list[Any]:
        """Return all values by number.

        The values of variables are tensors, and the values of other objects are arrays. Behind them
        are the object graph and the tensors of the replicas.
        """
        for handle in self._copying.values():
            tf.raw_ops.DisableCopyOnRead(resource=handle)
        values = self.read_variables()
        self._reads += 1
        if self._reads & (self._reads - 1) == 0:  # at the first read, the second, the fourth, and so on
            self._find_copying(values)
        for number, array in self._graph.values_of_others().items():
            values[number] = array
        values[len(self._graph.tracked)] = self._graph.graph_array()
        return values

    def read_variables(self) -> list[Any]:
        """Return only the values of variables."""
        values: list[Any] = [None] * self._count
        for numbers, handles, dtypes in self._calls:
            for number, tensor in zip(numbers, private.read_variables(handles, dtypes), strict=True):
                values[number] = tensor
        return values

    def _find_copying(self, values: list[Any]) -> None:
        """Find the variables that every read copies. A second read of these has another address."""
        again = self.read_variables()
        for number, variable in self.variables:
            if number not in self._copying and _address(values[number]) != _address(again[number]):
                self._copying[number] = variable.handle


def make_arrays(values: list[Any]) -> list[Any]:
    """Turn what was read into arrays.

    Any thread may call this, because a tensor does not change while something holds it.
    """
    return [array_of(value) if isinstance(value, tf.Tensor) else value for value in values]


def _address(tensor: Any) -> int:
    """Return the address of a tensor's memory; 0 for strings, variants and other devices."""
    if tensor.dtype in (tf.string, tf.variant) or "CPU" not in tensor.device:
        return 0
    return int(view_of(tensor).__array_interface__["data"][0])


class EagerState(StateSource):
    """The state of the objects in `checkpoint`."""

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
        """Make the source of state.

        `number` returns the number for the name of a checkpoint whose state is captured now.
        `read_step` reads the program's own counter of steps. Without `read_step`, the EagerState
        counts the steps that pass the boundary.
        """
        self._checkpoint, self._plan, self._number, self._read_step = checkpoint, plan, number, read_step
        self._events = events  # the program's event files, which are cut back with the state
        self._may_lack = events is not None  # a loop's own Checkpoint may miss variables; a fit's is made by procsv
        self._builds_late = False  # True: an optimizer of Keras has no variables yet, and makes them after the restore
        self._graph: ObjectGraph | None = None
        self._reader: Reader | None = None
        self._boundary: Boundary | None = None
        self._steps_before = 0
        self.spec: StateSpec | None = None
        try:
            self._builds_late = self.current()[0].has_late_optimizer
        except CannotCapture as why:
            log.info("procsv: checkpoints are written by TensorFlow on the training thread: %s", why)
            replicas.warn_of_one_value(checkpoint, str(why))

    def current(self) -> tuple[ObjectGraph, Reader, StateSpec]:
        """Return the object graph, its reader and its spec. Rebuild them if the objects changed."""
        if self._graph is None or self._reader is None or self.spec is None or not self._graph.is_current():
            self._graph = ObjectGraph(self._checkpoint)
            self._reader, self.spec = Reader(self._graph), self._graph.spec(self._plan)
        return self._graph, self._reader, self.spec

    def holds(self, variable: Any) -> bool:
        """Return whether the checkpoint has this variable; True if only TensorFlow can tell."""
        try:
            return self.current()[0].holds(variable)
        except CannotCapture:
            return True

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
            reader.read_values()  # the first call of an op costs milliseconds, and later ones do not
            replicas.warn_of_tasks(graph)

    def capture(self, into: mmap.mmap | None) -> Captured:
        try:
            graph, reader, spec = self.current()
        except CannotCapture as why:
            raise RuntimeError(f"{why}: save it with tf.train.Checkpoint.write") from None
        if self._may_lack and self._boundary is not None and self._boundary.runs:  # the program has built its model
            self._may_lack = False
            warn_of_left_out(graph.left_out(without_optimizers=self._builds_late))
        values = reader.read_values()
        copied = [False] * len(spec.sizes)
        logged, logged_s = ({}, 0.0) if self._events is None else self._events.read_sizes()
        captured = Captured(
            arrays=values,
            copied=copied,
            step=self.read_step(),
            spec=spec,
            number=self._number(),
            view=make_arrays,
            logged=logged,
            logged_s=logged_s,
        )
        if graph.per_replica:
            replicas.add_differing(graph.per_replica, captured, make_arrays)
        return captured

    def restore(self, state: SlotReader | str) -> None:
        self._restore(state)
        if self._events is not None:
            self._events.restored(state)

    def goes_on_from(self, path: str) -> None:
        """Continue from the checkpoint at `path`, which the program has restored by itself.

        Report replicas that did not get their own values back. Cut the event files back.
        """
        with contextlib.suppress(CannotCapture):
            replicas.check_put_back(self._checkpoint, self.current()[0], path)
        if self._events is not None:
            self._events.restored(path)

    def _restore(self, state: SlotReader | str) -> None:
        if isinstance(state, str):
            log.info("Restoring from %s", state)
            self._checkpoint.read(state)  # `restore` would attach a counter of saves to objects that have none
            with contextlib.suppress(CannotCapture):
                restore_own(state, self.current()[0])
                replicas.put_back_from_file(self.current()[0], state)
            return
        try:
            graph = self.current()[0]
        except CannotCapture as why:
            raise CannotRestore(str(why)) from None
        restore_from_slot(state, graph)

    def check_slot(self, reader: SlotReader) -> None:
        """Raise CannotRestore if the slot cannot be restored."""
        try:
            check_slot(reader, self.current()[0])
        except CannotCapture as why:
            raise CannotRestore(str(why)) from None

    def save_to(self, directory: Path, step: int) -> str:
        name = f"{Path(self._plan.save_path).name}-{self._number()}"
        try:
            graph, reader, _ = self.current()
        except CannotCapture:
            path = str(self._checkpoint.write(str(directory / name)))
        else:
            values = reader.read_variables() if graph.per_replica else []
            path = replicas.write_whole(self._checkpoint.write, graph.per_replica, values, directory / name)
        if not Path(f"{path}.index").exists():
            raise OSError(f"{type(self._checkpoint).__name__}.write() has not written {path} when it returns")
        return path

    def close(self) -> None:
        self._graph = self._reader = None
