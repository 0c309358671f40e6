"""Capture all saved tensors in one session.run, as views of TensorFlow's own buffers.

A GraphState captures between two steps. `numpy_function` passes TensorFlow's own buffers to its
callback. For most variables, the capture only keeps a reference to the buffer: it *holds* the
tensor. As long as it does, an update of the variable writes into a new buffer and leaves this one
as it is (variable_views.py). The snapshot worker copies held tensors later, while training goes on.
All other tensors, such as ref variables that are updated in place, are copied into the slot before
the callback returns, so training waits for this copy. A capture costs about 1.3 µs a tensor. The
ref variables add one copy at memory speed.

If parameter servers are tasks of this run, they capture their own variables in the same call
(server_capture.py). If one of them refuses, the chief fetches all variables for the rest of the
session, and `refusal` says why. If the server has already captured, and refuses to copy, this
capture is lost as well (CaptureLost).
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from procsv.base.errors import PeerError
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.shm.slot_file import SlotMap
from procsv.training.graph.saver_ops import SavedTensor, SaveGraph
from procsv.training.graph.server_capture import ServerCapture, server_of
from procsv.training.graph.variable_views import array_of, can_be_held, variable_of, views_of
from procsv.training.snapshots.slot_fill import SlotCopy
from procsv.training.snapshots.slot_layout import lay_out
from procsv.training.snapshots.source import Captured, CaptureLost, CheckpointEntry, RemoteArrays, StateSpec

tf1 = tf.compat.v1

RAISED = re.compile(r"\w+(Error|Refused): ")  # marks a Python exception in the text of a TensorFlow error
CALLERS_THREAD = -1  # for RunOptions.inter_op_thread_pool: the caller's thread runs the ops, not a thread pool


def _expected_size(saved: SavedTensor) -> int | None:
    """Return a tensor's size in bytes; None for strings and unknown shapes."""
    shape = saved.tensor.shape
    if not shape.is_fully_defined() or saved.dtype == "string":
        return None
    return int(shape.num_elements()) * int(saved.tensor.dtype.base_dtype.size)


class Capture:
    """The capture op of one Saver in one graph."""

    def __init__(
        self,
        saved: SaveGraph,
        graph: Any,
        global_step: Any | None,
        *,
        has_servers: bool = False,
        hosts: Sequence[str] = (),
    ) -> None:
        """Add the ops to `graph`.

        `has_servers`: the parameter servers of `graph` are tasks of this run. `hosts`: the machine
        of each server by index, if the servers run on other machines; otherwise empty.
        """
        self._hosts = hosts
        self._saved = saved
        self.distinct: list[SavedTensor] = []
        # The place of each tensor in `distinct`, by name. A tensor that is saved under two keys is captured once.
        self._index: dict[str, int] = {}
        for shard in saved.shards:
            for item in shard:
                if item.tensor.name not in self._index:
                    self._index[item.tensor.name] = len(self.distinct)
                    self.distinct.append(item)
        # For each tensor: whether the capture holds it. The others are copied at once.
        self._held = [can_be_held(item.tensor) for item in self.distinct]
        self._sizes = [_expected_size(item) for item in self.distinct]
        servers = [
            server_of(item.tensor) if has_servers and size is not None else ""
            for item, size in zip(self.distinct, self._sizes, strict=True)
        ]
        # Small tensors share a pack only if the same process copies them at the same time.
        copied_together: dict[tuple[str, bool], list[int]] = {}
        for number, kind in enumerate(zip(servers, self._held, strict=True)):
            copied_together.setdefault(kind, []).append(number)
        self._layout = lay_out(self._sizes, copied_together.values())
        self._into: mmap.mmap | None = None  # the slot to copy into; None: copy nothing
        self._captured: Captured | None = None
        self._has_step = global_step is not None
        self._servers: ServerCapture | None = None
        self.refusal = ""  # why the servers capture nothing in this session
        self._calls: dict[Any, Callable[[], Any]] = {}
        with graph.as_default(), graph.control_dependencies(None), tf1.device(None), tf1.name_scope("procsv/"):
            self.op = self._add_op(range(len(self.distinct)), global_step)
            if any(servers):
                self._add_servers(servers, global_step)

    def _add_op(self, numbers: Sequence[int], global_step: Any | None) -> Any:
        """Add the op that captures these tensors in this process."""
        inputs = views_of([self.distinct[number].tensor for number in numbers])
        step = [] if global_step is None else [tf1.convert_to_tensor(global_step)]
        ours = set(numbers)
        shapes = [None if n in ours else tuple(item.tensor.shape.as_list()) for n, item in enumerate(self.distinct)]
        skip = [held or n not in ours for n, held in enumerate(self._held)]  # not copied by this op
        copy = SlotCopy(self._layout, self._sizes, skip)

        def take(*views: Any) -> Any:
            """Take the views. Runs inside session.run.

            For tensors captured on a server, the entry in `arrays` is the shape instead of an
            array.
            """
            arrays = shapes.copy()
            for number, view in zip(numbers, views[: len(numbers)], strict=True):
                arrays[number] = array_of(view)
            copied = [False] * len(arrays) if self._into is None else copy.copy(arrays, self._into)
            self._captured = Captured(arrays=arrays, copied=copied, step=int(views[-1].reshape(())) if step else -1)
            return np.int64(0)

        return tf1.numpy_function(take, inputs + step, tf.int64, name="capture").op

    def _add_servers(self, servers: list[str], global_step: Any | None) -> None:
        """Add ops that capture on the servers, and one that captures the other tensors here."""
        by_server: dict[str, list[int]] = {}
        for number, server in enumerate(servers):
            by_server.setdefault(server, []).append(number)
        rest = by_server.pop("", [])
        tensors = [item.tensor for item in self.distinct]
        places = list(zip(self._layout.offsets, (size or 0 for size in self._sizes), self._held, strict=True))
        step = None if global_step is None else variable_of(tf1.convert_to_tensor(global_step))
        theirs = [number for numbers in by_server.values() for number in numbers]
        # If a server captures the step's variable, the step is read from that capture. A separate read could return a
        # later step, because other tasks increment it.
        step_at = next((n for n in theirs if step is not None and variable_of(tensors[n]) is step), -1)
        self._servers = ServerCapture(by_server, tensors, places, step_at, self._hosts)
        self._servers.rest_op = self._add_op(rest, None if step_at >= 0 else global_step)

    def spec(self, plan: CheckpointPlan) -> StateSpec:
        """Describe what a snapshot holds. Each entry has the number of its captured array."""
        shards = tuple(
            tuple(CheckpointEntry(item.key, item.slice, item.dtype, self._index[item.tensor.name]) for item in shard)
            for shard in self._saved.shards
        )
        saved = self._saved
        return StateSpec(
            plan=plan,
            sharded=saved.sharded,
            shards=shards,
            sizes=self._sizes,
            layout=self._layout,
            has_step=self._has_step,
        )

    def capture_now(self, session: Any, memory: mmap.mmap | None = None) -> Captured:
        """Capture all tensors.

        Copy into the slot `memory` the tensors that cannot be held. Without `memory`, copy nothing.
        Such a capture only does the one-time work of a session's first capture, and its result is
        not used (`GraphState.warm_up`).
        """
        # Servers find the slot by its path, which only a SlotMap has.
        if self._servers is not None and not self.refusal and isinstance(memory, SlotMap | None):
            try:
                return self._run_with_servers(self._servers, session, memory)
            except tf.errors.InvalidArgumentError as refusal:
                self._refused(refusal)
        if session not in self._calls:
            self._calls = {session: _callable_of(session, self.op)}
        self._into = memory
        try:
            self._calls[session]()
            return self._taken()
        finally:
            self._into = self._captured = None

    def _run_with_servers(self, servers: ServerCapture, session: Any, memory: SlotMap | None) -> Captured:
        self._into = memory
        try:
            step, copy = servers.capture_servers(session, memory)
            captured = self._taken()
        finally:
            self._into = self._captured = None
        captured.elsewhere = RemoteArrays(frozenset(servers.numbers), lambda: self._finish(copy))
        captured.step = max(captured.step, step)
        for number in servers.numbers:
            captured.copied[number] = True  # as for a copied tensor, `arrays` has only the shape; `_finish` copies it
        return captured

    def _finish(self, copy: Callable[[], dict[int, int]]) -> dict[int, int]:
        try:
            return copy()
        except tf.errors.InvalidArgumentError as refusal:
            self._refused(refusal)
            raise CaptureLost(self.refusal) from refusal
        except PeerError as error:
            self.refusal = str(error)
            raise CaptureLost(self.refusal) from error

    def _refused(self, refusal: Any) -> None:
        lines = [line.strip() for line in refusal.message.splitlines()]
        raised = (line.partition(": ")[2] for line in lines if RAISED.match(line))
        self.refusal = next(raised, lines[0])

    def _taken(self) -> Captured:
        captured = self._captured
        assert captured is not None, "session.run returned without the callback"
        return captured

    def release_session(self) -> None:
        """Drop everything that ties the capture to a session that is being closed."""
        self._calls, self.refusal = {}, ""
        if self._servers is not None:
            self._servers.release_session()


def _callable_of(session: Any, op: Any) -> Callable[[], Any]:
    """Return a function that runs `op` without passing the boundary: a capture is not a step."""
    if session.sess_str:  # the session is in another process: no thread of ours can run it
        call: Callable[[], Any] = tf1.Session.make_callable(session, op)
        return call
    options = config_pb2.CallableOptions(target=[op.name])
    options.run_options.inter_op_thread_pool = CALLERS_THREAD
    handle: Callable[[], Any] = session._make_callable_from_options(options)
    return handle
