"""One session.run that takes all saved tensors at one moment, as views of TensorFlow's own buffers.

Called by a GraphState between two steps.  `numpy_function` hands its callback the runtime's own buffers.  What
an update cannot change under our hands (variable_views.py) is only kept, and copied later.  Everything else (ref variables,
updated in place) is copied into the slot before the callback returns.  Facts: about 1.3 µs a tensor; one pass at memory
speed for ref.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from procsv.ipc.messaging.messages import CheckpointPlan
from procsv.training.graph.saver_ops import SavedTensor, SaveGraph
from procsv.training.graph.variable_views import can_be_held, views_of
from procsv.training.snapshots.slot_copy import SlotCopy
from procsv.training.snapshots.slot_layout import lay_out
from procsv.training.snapshots.source import Captured, Entry, StateSpec

tf1 = tf.compat.v1

CALLERS_THREAD = -1  # of RunOptions.inter_op_thread_pool: no hand-over to a pool and back


def _expected_size(saved: SavedTensor) -> int | None:
    """Bytes of a tensor if its static shape tells, None if it does not (strings, unknown shapes)."""
    shape = saved.tensor.shape
    if not shape.is_fully_defined() or saved.dtype == "string":
        return None
    return int(shape.num_elements()) * int(saved.tensor.dtype.base_dtype.size)


class Capture:
    """The capture op of one Saver in one graph."""

    def __init__(self, saved: SaveGraph, graph: Any, global_step: Any | None) -> None:
        self._saved = saved
        self.distinct: list[SavedTensor] = []
        self._index: dict[str, int] = {}  # tensor name -> place in `distinct`; one saved under two keys is taken once
        for shard in saved.shards:
            for item in shard:
                if item.tensor.name not in self._index:
                    self._index[item.tensor.name] = len(self.distinct)
                    self.distinct.append(item)
        held = [can_be_held(item.tensor) for item in self.distinct]
        later = [number for number, is_held in enumerate(held) if is_held]
        at_once = [number for number, is_held in enumerate(held) if not is_held]
        self._sizes = [_expected_size(item) for item in self.distinct]
        self._layout = lay_out(self._sizes, (later, at_once))
        self._copy = SlotCopy(self._layout, self._sizes, held)
        self._into: mmap.mmap | None = None  # None: nothing is copied
        self._captured: Captured | None = None
        self._has_step = global_step is not None
        self.op = self._add_op(graph, global_step)
        self._calls: dict[Any, Callable[[], Any]] = {}

    def _add_op(self, graph: Any, global_step: Any | None) -> Any:
        with graph.as_default(), graph.control_dependencies(None), tf1.device(None), tf1.name_scope("procsv/"):
            inputs = views_of([item.tensor for item in self.distinct])
            step = [] if global_step is None else [tf1.convert_to_tensor(global_step)]
            return tf1.numpy_function(self._take, inputs + step, tf.int64, name="capture").op

    def _take(self, *views: Any) -> Any:
        """Runs inside session.run.  Keeps what can be kept, copies what cannot."""
        arrays = list(views)
        step = int(arrays.pop().reshape(())) if self._has_step else -1
        copied = [False] * len(arrays) if self._into is None else self._copy.copy(arrays, self._into)
        self._captured = Captured(arrays, copied, step)
        return np.int64(step)

    def spec(self, plan: CheckpointPlan) -> StateSpec:
        """What a snapshot holds; each entry has the number of the array that is captured for it."""
        shards = tuple(
            tuple(Entry(item.key, item.slice, item.dtype, self._index[item.tensor.name]) for item in shard)
            for shard in self._saved.shards
        )
        saved = self._saved
        return StateSpec(plan, saved.format, saved.sharded, shards, self._sizes, self._layout, self._has_step)

    def run(self, session: Any, memory: mmap.mmap | None = None) -> Captured:
        """Captures now.  `memory`: the slot, for what must be copied at once; without one, nothing is copied."""
        if session not in self._calls:
            self._calls = {session: _callable_of(session, self.op)}
        self._into = memory
        try:
            self._calls[session]()
            captured = self._captured
            assert captured is not None, "session.run returned without the callback"
            return captured
        finally:
            self._into = self._captured = None

    def forget(self) -> None:
        """Drops what ties the capture to a session that is being closed."""
        self._calls = {}


def _callable_of(session: Any, op: Any) -> Callable[[], Any]:
    """Runs `op`, past the boundary's own run and make_callable: a capture is no step of the program."""
    if session.sess_str:  # of another process: there is no thread of ours to run it in
        call: Callable[[], Any] = tf1.Session.make_callable(session, op)
        return call
    options = config_pb2.CallableOptions(target=[op.name])
    options.run_options.inter_op_thread_pool = CALLERS_THREAD
    handle: Callable[[], Any] = session._make_callable_from_options(options)
    return handle
