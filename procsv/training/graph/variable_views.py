"""Make views of TensorFlow's buffers that do not change while training goes on, without a copy.

A Capture chooses its views with this module when it is made. While something else holds the buffer
of a resource variable, a dense update copies on write, so the view keeps its value. A sparse update
(a scatter, the gradients of an embedding) writes in place. So before the first sparse update
TensorFlow switches the variable to copy-on-read. From then on, every read copies the whole
embedding on the training thread. If sparse updates are possible for a variable, the capture runs
DisableCopyOnRead before it reads. If the view is still held at the next sparse update, this update
copies the variable once.

One ReadVariableOp for each of some thousand variables takes nearly half of a capture (1.3 of 2.9 µs
a variable). So one op reads many variables: TensorFlow's internal `_ReadVariablesOp`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from procsv.training.graph.mixing import VARIABLE_OPS
from procsv.training.summaries.graph_walk import RESOURCE_READS

tf1 = tf.compat.v1

TOGETHER_MAX = 100  # variables that one op reads; larger groups are no faster

# Ops whose output can be held safely while training goes on. The output of any other op is copied at once.
_HOLDABLE = {"ReadVariableOp", "Const"}
_EXPORTS = {"LookupTableExportV2", "LookupTableExport"}
# Tables whose export is a copy. Another table (MutableDenseHashTable) exports its live memory.
_COPIED_TABLES = {"HashTable", "MutableHashTable", "MutableHashTableOfTensors"}

# Ops that do not switch a variable to copy-on-read. Any other op may, or may call one that does.
_DENSE = RESOURCE_READS | {"AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp", "DestroyResourceOp"}
_DENSE_PREFIX = "ResourceApply"


def _source(tensor: Any) -> Any | None:
    """Return the op that computes `tensor`, skipping Identity ops; None for a ref variable."""
    while not tensor.dtype._is_ref_dtype:
        if tensor.op.type != "Identity":
            return tensor.op
        tensor = tensor.op.inputs[0]
    return None


def variable_of(tensor: Any) -> Any | None:
    """Return the variable's op if `tensor` is the plain value of a variable; otherwise None."""
    source = tensor.op
    while source.type == "Identity":
        source = source.inputs[0].op
    if source.type == "ReadVariableOp":
        source = source.inputs[0].op
    return source if source.type in VARIABLE_OPS else None


def can_be_held(tensor: Any) -> bool:
    """Return whether a view of `tensor` keeps its value while training goes on."""
    source = _source(tensor)
    if source is not None and source.type in _EXPORTS:
        return source.inputs[0].op.type.removesuffix("V2") in _COPIED_TABLES
    return source is not None and source.type in _HOLDABLE


def views_of(tensors: list[Any]) -> list[Any]:
    """Return tensors with the values of `tensors`, read with as few ops and copies as possible.

    The result has the order of `tensors`. The function may add ops to the graph, so the graph must
    be the default graph and not finalized.
    """
    views = list(tensors)
    together: dict[str, list[tuple[int, Any]]] = defaultdict(list)  # by device
    for number, tensor in enumerate(tensors):
        read = _plain_read(tensor)
        if read is None:
            continue
        users = read.inputs[0].consumers()
        if all(op.type in _DENSE or op.type.startswith(_DENSE_PREFIX) for op in users):
            together[read.inputs[0].op.device].append((number, read))
        else:
            views[number] = _read_in_place(read)
    for numbered in together.values():
        for start in range(0, len(numbered), TOGETHER_MAX):
            numbers, reads = zip(*numbered[start : start + TOGETHER_MAX], strict=True)
            for number, view in zip(numbers, _read_together(reads), strict=True):
                views[number] = view
    return views


def _plain_read(tensor: Any) -> Any | None:
    """Return the ReadVariableOp that `tensor` comes from.

    Return None if another op computes it, or if the read has to wait for other ops.
    """
    source = _source(tensor)
    if source is None or source.type != "ReadVariableOp" or source.control_inputs:
        return None
    return source if source.inputs[0].op.type == "VarHandleOp" else None


def _read_in_place(read: Any) -> Any:
    """Return what `read` reads, as a view even if the variable is in copy-on-read mode."""
    handle = read.inputs[0]
    with tf1.control_dependencies([tf.raw_ops.DisableCopyOnRead(resource=handle)]):  # both run where the variable is
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=read.get_attr("dtype"))


def _read_together(reads: Sequence[Any]) -> list[Any]:
    """Return the values that `reads` read from one device, with a single op on that device."""
    handles, types = [read.inputs[0] for read in reads], [read.get_attr("dtype") for read in reads]
    listed = tf1.AttrValue.ListValue(type=[dtype.as_datatype_enum for dtype in types])
    attrs = {"N": tf1.AttrValue(i=len(reads)), "dtypes": tf1.AttrValue(list=listed)}
    graph = handles[0].graph
    with graph.colocate_with(handles[0].op, ignore_existing=True):  # tf.compat.v1.colocate_with logs a warning
        made = graph.create_op("_ReadVariablesOp", handles, types, name="views", attrs=attrs)
    return list(made.outputs)


def array_of(value: Any) -> Any:
    """Return what the runtime passes for a tensor as an array. A single string arrives as bytes."""
    return np.array(value, object) if isinstance(value, bytes) else value
