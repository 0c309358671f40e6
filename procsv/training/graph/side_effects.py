"""Side effects of a session call: decide from the graph whether the call under way can change what is saved.

Asked by the snapshotter when a machine goes away in the middle of a long call: an evaluation reads variables and writes none, so the
state can be taken beside it.  Read from the graph; what is not known to be a reading counts as a writing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from procsv.training.summaries.graph_walk import REF_VARIABLES, RESOURCE_READS, closure, elements_of, needed_ops

_HANDLES = {
    "VarHandleOp",
    "HashTableV2",
    "MutableHashTableV2",
    "MutableDenseHashTableV2",
    "MutableHashTableOfTensorsV2",
}
_REF_PASSING = {"RefSwitch", "RefMerge", "RefEnter"}


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
    if op.type in REF_VARIABLES:
        return closure(_ref_users(op), _ref_users)
    if op.inputs and op.inputs[0].op.type in _HANDLES and op.type in RESOURCE_READS:
        return {user for user in op.inputs[0].op.outputs[0].consumers() if user.type not in RESOURCE_READS}
    return None


def _ref_users(op: Any) -> list[Any]:
    """The ops that take a ref variable as a reference, as `op` makes it or passes it on."""
    refs = (output for output in op.outputs if output.dtype._is_ref_dtype)
    users = (user for ref in refs for user in ref.consumers())
    return [user for user in users if user.type in _REF_PASSING or any(arg.is_ref for arg in user.op_def.input_arg)]
