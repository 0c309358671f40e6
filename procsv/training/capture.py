"""One session.run that takes all saved tensors at one moment, as views of TensorFlow's own buffers.

Called by the snapshotter between two steps.  `numpy_function` hands its callback the runtime's own buffers.  What
an update cannot change under our hands (resource variables are copy-on-write while a view is held; the outputs
of export ops are fresh) is only kept, and copied later.  Everything else (ref variables, updated in place) is
copied into the slot before the callback returns.  Facts: about 1 µs a tensor; one pass at memory speed for ref.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from procsv.ipc.arena import HEADER_BYTES
from procsv.ipc.contents import align
from procsv.training.save_graph import SavedTensor, SaveGraph

tf1 = tf.compat.v1

# Ops whose output is safe to hold while training goes on.  What is not known to be safe is copied at once.
_HOLDABLE = {"ReadVariableOp", "LookupTableExportV2", "LookupTableExport", "Const"}
_PASSING = {"Identity"}


def can_be_held(tensor: Any) -> bool:
    """Whether a view of `tensor` keeps its value while training goes on."""
    op = tensor.op
    while op.type in _PASSING:
        if tensor.dtype._is_ref_dtype:
            return False
        tensor = op.inputs[0]
        op = tensor.op
    return op.type in _HOLDABLE and not tensor.dtype._is_ref_dtype


def lay_out(sizes: list[int | None]) -> tuple[list[int], int]:
    """Offsets in a slot for tensors of these sizes, and the first byte after them.

    One of unknown size (None) gets offset -1: its place is found anew for each snapshot, behind the others.
    """
    offsets, at = [], HEADER_BYTES
    for size in sizes:
        offsets.append(-1 if size is None else at)
        at = align(at + (size or 0))
    return offsets, at


def expected_sizes(saved: list[SavedTensor]) -> list[int | None]:
    """Bytes of each tensor where its static shape tells, None where it does not (strings, unknown shapes)."""
    sizes: list[int | None] = []
    for item in saved:
        shape = item.tensor.shape
        if shape.is_fully_defined() and item.dtype != "string":
            dtype = np.dtype(item.tensor.dtype.base_dtype.as_numpy_dtype)
            sizes.append(int(np.prod(shape.as_list(), dtype=np.int64)) * dtype.itemsize)
        else:
            sizes.append(None)
    return sizes


@dataclass(slots=True)
class Taken:
    """What one capture took: an array per distinct tensor (in `Capture.distinct` order), and the global step."""

    arrays: list[Any]  # of a copied one only the shape is kept
    copied: list[bool]  # True: the bytes are in the slot already
    step: int


class Capture:
    """The capture op of one Saver in one graph.  Adds one op and one constant-time callback to the graph."""

    def __init__(self, saved: SaveGraph, graph: Any, global_step: Any | None) -> None:
        self.saved = saved
        self.distinct: list[SavedTensor] = []
        self.index: dict[str, int] = {}  # tensor name -> place in `distinct`; one saved under two keys is taken once
        for shard in saved.shards:
            for item in shard:
                if item.tensor.name not in self.index:
                    self.index[item.tensor.name] = len(self.distinct)
                    self.distinct.append(item)
        self.sizes = expected_sizes(self.distinct)
        self.offsets, self.end = lay_out(self.sizes)
        self._held = [can_be_held(item.tensor) for item in self.distinct]
        self._into: Any = None
        self._warming = False
        self._taken: Taken | None = None
        self.has_step = global_step is not None
        self.op = self._add_op(graph, global_step)
        self._calls: dict[Any, Callable[[], Any]] = {}

    @property
    def copies_at_once(self) -> bool:
        return not all(self._held)

    def _add_op(self, graph: Any, global_step: Any | None) -> Any:
        inputs = [item.tensor for item in self.distinct]
        with graph.as_default(), graph.control_dependencies(None), tf1.device(None), tf1.name_scope("procsv/"):
            step = [] if global_step is None else [tf1.convert_to_tensor(global_step)]
            return tf1.numpy_function(self._take, inputs + step, tf.int64, name="capture")

    def _take(self, *views: Any) -> Any:
        """Runs inside session.run.  Keeps what can be kept, copies what cannot."""
        arrays = list(views[: len(self.distinct)])
        step = int(np.asarray(views[-1]).reshape(())) if self.has_step else -1
        copied = [False] * len(arrays)
        for i, held in enumerate(self._held):
            if held or self._warming:
                continue
            array, offset, size = arrays[i], self.offsets[i], self.sizes[i]
            if array.dtype == object:
                continue  # strings reach Python as copies
            if size is not None and array.nbytes == size:
                np.copyto(self._into[offset : offset + size], flat_bytes(array))
                arrays[i], copied[i] = array.shape, True
            else:
                arrays[i] = np.array(array, copy=True)
        self._taken = Taken(arrays, copied, step)
        return np.int64(step)

    def run(self, session: Any, memory: Any) -> Taken:
        """Captures now.  `memory`: the slot as a uint8 array, for what must be copied at once."""
        self._into = memory
        return self._call(session)

    def warm_up(self, session: Any) -> None:
        """Captures once and drops it: the first capture of a session costs 10 to 18 ms, the later ones do not."""
        self._warming = True
        try:
            self._call(session)
        finally:
            self._warming = False

    def _call(self, session: Any) -> Taken:
        call = self._calls.get(session)
        if call is None:
            # Past the boundary's own run and make_callable: a capture is no step of the program.
            call = tf1.Session.make_callable(session, self.op)
            self._calls = {session: call}
        try:
            call()
            taken = self._taken
            assert taken is not None, "session.run returned without the callback"
            return taken
        finally:
            self._into = self._taken = None

    def forget(self) -> None:
        """Drops what ties the capture to a session that is being closed."""
        self._calls = {}


def flat_bytes(array: Any) -> Any:
    """The bytes of `array` in C order, as a flat uint8 array; a view where the memory allows."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
