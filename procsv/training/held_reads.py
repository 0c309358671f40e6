"""Which views of TensorFlow's buffers stay as they are while training goes on, and how to get them without a copy.

Called by a Capture when it is made.  A dense update of a resource variable copies on write while somebody holds its
buffer.  A sparse one (scatter, gradients of an embedding) writes in place, which is why TensorFlow switches such a variable to
copy-on-read: every read is a copy, of the whole embedding, on the training thread.  Where that may be so, the capture reads
behind a DisableCopyOnRead: the next sparse update then copies on write, once, if the view is still held by then.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1

# Ops whose output is safe to hold while training goes on.  What is not known to be safe is copied at once.
_HOLDABLE = {"ReadVariableOp", "LookupTableExportV2", "LookupTableExport", "Const"}
_PASSING = {"Identity"}

# What is done to a variable without switching it to copy-on-read.  Anything else may do so, or call what does.
_DENSE = {
    "AssignAddVariableOp",
    "AssignSubVariableOp",
    "AssignVariableOp",
    "DestroyResourceOp",
    "DisableCopyOnRead",
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VarIsInitializedOp",
    "VariableShape",
}
_DENSE_PREFIX = "ResourceApply"


def _source(tensor: Any) -> Any | None:
    """The op that makes `tensor`, behind what only passes it on; None if a ref variable is on the way."""
    while not tensor.dtype._is_ref_dtype:
        if tensor.op.type not in _PASSING:
            return tensor.op
        tensor = tensor.op.inputs[0]
    return None


def can_be_held(tensor: Any) -> bool:
    """Whether a view of `tensor` keeps its value while training goes on."""
    source = _source(tensor)
    return source is not None and source.type in _HOLDABLE


def without_copy(tensor: Any) -> Any:
    """`tensor`, or for a variable that may be in copy-on-read mode a read of it that is a view all the same.

    Called with the graph as default, not finalized; adds two ops for each such variable.
    """
    source = _source(tensor)
    if source is None or source.type != "ReadVariableOp" or source.control_inputs:
        return tensor
    handle = source.inputs[0]
    if handle.op.type != "VarHandleOp" or not any(_may_be_sparse(op) for op in handle.consumers()):
        return tensor
    with tf1.control_dependencies([tf.raw_ops.DisableCopyOnRead(resource=handle)]):  # both run where the variable is
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=source.get_attr("dtype"))


def _may_be_sparse(op: Any) -> bool:
    return op.type not in _DENSE and not op.type.startswith(_DENSE_PREFIX)
