"""Capture of what a tf.train.Checkpoint tracks, as views of TensorFlow's own buffers.

Called by an EagerState, on the training thread.  Reading a resource variable shares its buffer, and an update leaves a buffer
alone that somebody else holds: so a capture costs a call for a hundred variables, whatever their bytes.  A variable that
was updated in parts (an embedding) may copy when it is read; it is told not to, as soon as that is seen.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from procsv.training.eager import private
from procsv.training.eager.object_graph import READ_MAX, ObjectGraph, array_of, view_of


class Reader:
    """Reads the variables of one object graph."""

    def __init__(self, graph: ObjectGraph) -> None:
        self._graph = graph
        of_replicas = [pair for one in graph.per_replica for pair in zip(one.numbers, one.variables, strict=True)]
        self.variables = [*graph.variables, *of_replicas]  # with the numbers of their values
        self._count = len(graph.tracked) + 1 + len(of_replicas)
        by_device: dict[str, list[tuple[int, Any]]] = {}
        for number, variable in self.variables:
            by_device.setdefault(variable.handle.device, []).append((number, variable))
        # (numbers, handles, dtypes) of each call
        self._calls = [
            ([n for n, _ in part], [v.handle for _, v in part], [v.dtype.base_dtype for _, v in part])
            for pairs in by_device.values()
            for part in (pairs[at : at + READ_MAX] for at in range(0, len(pairs), READ_MAX))
        ]
        self._copying: dict[int, Any] = {}  # handles of those that copy when they are read, by number
        self._reads = 0

    def read(self) -> list[Any]:
        """All values by number: tensors of variables, arrays of the others; the object graph; tensors of what each replica holds."""
        for handle in self._copying.values():
            tf.raw_ops.DisableCopyOnRead(resource=handle)
        values = self.read_variables()
        self._reads += 1
        if self._reads & (self._reads - 1) == 0:  # now and then: the first time, the second, the fourth, …
            self._find_copying(values)
        for number, array in self._graph.values_of_others().items():
            values[number] = array
        values[len(self._graph.tracked)] = self._graph.graph_array()
        return values

    def read_variables(self) -> list[Any]:
        """Those of the variables alone."""
        values: list[Any] = [None] * self._count
        for numbers, handles, dtypes in self._calls:
            for number, tensor in zip(numbers, private.read_variables(handles, dtypes), strict=True):
                values[number] = tensor
        return values

    def _find_copying(self, values: list[Any]) -> None:
        """Those that are somewhere else when they are read once more."""
        again = self.read_variables()
        for number, variable in self.variables:
            if number not in self._copying and _address(values[number]) != _address(again[number]):
                self._copying[number] = variable.handle


def make_arrays(values: list[Any]) -> list[Any]:
    """The arrays of what was read.  Any thread: a tensor that is held stays as it is."""
    return [array_of(value) if isinstance(value, tf.Tensor) else value for value in values]


def _address(tensor: Any) -> int:
    """Where a tensor lies; 0 if that tells nothing: strings, variants, and what lies on another device."""
    if tensor.dtype in (tf.string, tf.variant) or "CPU" not in tensor.device:
        return 0
    return int(view_of(tensor).__array_interface__["data"][0])
