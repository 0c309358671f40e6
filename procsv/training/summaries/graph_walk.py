"""Walk over a graph: the elements that a run fetches, and the ops that it needs.

This is used to read what a Saver does, to compute summaries with a step, and to find side effects.
It runs nothing.
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

    Return None if only TensorFlow can tell.
    """
    try:
        wanted = [graph.as_graph_element(fetch) for fetch in tf.nest.flatten(fetches, expand_composites=True)]
        return wanted, frozenset(graph.as_graph_element(tensor).name for tensor in feed_dict or ())
    except (TypeError, ValueError, KeyError):
        return None


def needed_ops(
    elements: Iterable[Any], fed: Collection[str] = frozenset(), done: Collection[Any] = frozenset()
) -> set[Any]:
    """Return all ops that must run for `elements`, except ops in `done` and what `fed` replaces."""
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
