"""Side effects of a session call: decide from the graph whether the call under way can change what is saved.

Asked by the snapshotter when a machine goes away in the middle of a long call: an evaluation reads variables and writes none, so the
state can be taken beside it.  Read from the graph; what is not known to be a reading counts as a writing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from procsv.training.summaries.graph_walk import elements_of, needed_ops

_READS = {
    "DisableCopyOnRead",
    "Identity",
    "LookupTableExport",
    "LookupTableExportV2",
    "LookupTableFind",
    "LookupTableFindV2",
    "LookupTableSize",
    "LookupTableSizeV2",
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VarIsInitializedOp",
    "VariableShape",
}
_HANDLES = {
    "VarHandleOp",
    "HashTableV2",
    "MutableHashTableV2",
    "MutableDenseHashTableV2",
    "MutableHashTableOfTensorsV2",
}
_REFS = {"Variable", "VariableV2"}


def is_harmless(graph: Any, fetches: Any, saved: Iterable[Any]) -> bool:
    """Whether running `fetches` (as given to Session.run) changes none of the tensors `saved`; False if that is not sure."""
    known = elements_of(graph, fetches)
    if known is None:
        return False
    writers: set[Any] = set()
    for tensor in saved:
        found = _writers_of(tensor)
        if found is None:
            return False
        writers |= found
    return needed_ops(known[0]).isdisjoint(writers)


def _writers_of(tensor: Any) -> set[Any] | None:
    """The ops that may change what `tensor` reads; None if it is of no known kind."""
    op = tensor.op
    while op.type == "Identity":
        op = op.inputs[0].op
    if op.type == "Const":
        return set()
    if op.type in _REFS:
        return _ref_writers(op.outputs[0])
    if op.inputs and op.inputs[0].op.type in _HANDLES and op.type in _READS:
        return {user for user in op.inputs[0].op.outputs[0].consumers() if user.type not in _READS}
    return None


def _ref_writers(variable: Any) -> set[Any]:
    """Ops that take a ref variable as a reference, also behind an op that passes the reference on."""
    found: set[Any] = set()
    queue = deque([variable])
    while queue:
        ref = queue.popleft()
        for user in ref.consumers():
            if user in found or user.type in _READS:
                continue
            if any(arg.is_ref for arg in user.op_def.input_arg) or user.type in ("RefSwitch", "RefMerge", "RefEnter"):
                found.add(user)
                queue.extend(output for output in user.outputs if output.dtype._is_ref_dtype)
    return found
