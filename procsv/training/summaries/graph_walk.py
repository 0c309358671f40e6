"""Find which ops of a TensorFlow graph a fetch needs.

Several modules read graphs with these functions: `graph/saver_ops.py` to see what a Saver does,
`piggyback.py` to compute summaries with a step, and `sessions/hooks.py` to see whether a run feeds
what a summary needs. Nothing here runs an op.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import tensorflow as tf

# Op types that only read their first input, a resource.
RESOURCE_READS = frozenset(
    {
        "DisableCopyOnRead",
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
)
REF_VARIABLES = frozenset({"Variable", "VariableV2"})


def elements_of(graph: Any, fetches: Any, feed_dict: Any = None) -> tuple[list[Any], frozenset[str]] | None:
    """Return the tensors and ops that a run fetches, and the names of what it feeds.

    Return None if the graph cannot resolve one of them by itself; then only TensorFlow's session
    knows what the run fetches.
    """
    try:
        wanted = [graph.as_graph_element(fetch) for fetch in tf.nest.flatten(fetches, expand_composites=True)]
        return wanted, frozenset(graph.as_graph_element(tensor).name for tensor in feed_dict or ())
    except (TypeError, ValueError, KeyError):
        return None


def needed_ops(
    elements: Iterable[Any], fed: Collection[str] = frozenset(), done: Collection[Any] = frozenset()
) -> set[Any]:
    """Return all ops that must run for `elements`.

    Left out are the ops in `done`, and what only these ops need. `fed` has the names of the tensors
    that the run feeds; the ops that would compute them are left out, too.
    """
    start = (e if isinstance(e, tf.Operation) else e.op for e in elements if e.name not in fed)
    return closure(
        (op for op in start if op not in done),
        lambda op: (source for source in sources_of(op, fed) if source not in done),
    )


def sources_of(op: Any, fed: Collection[str] = frozenset()) -> list[Any]:
    """Return the ops that run right before `op`, given the names of what is fed."""
    return [*(tensor.op for tensor in op.inputs if tensor.name not in fed), *op.control_inputs]


def closure(start: Iterable[Any], follow: Callable[[Any], Iterable[Any]]) -> set[Any]:
    """Return `start`, and everything that repeated calls of `follow` reach from it."""
    found = set(start)
    to_see = list(found)
    while to_see:
        for other in follow(to_see.pop()):
            if other not in found:
                found.add(other)
                to_see.append(other)
    return found
