"""Ops that are in a graph for its session, and nowhere else: not in what is written of the graph, nor in its lists.

Called where procsv adds an op of its own to the user's graph.  What the program, its checkpoints and its event files
see of the graph is what TensorFlow's Supervisor would have left.  A hidden op can be run and found by its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_HIDDEN = "_procsv_hidden"  # attribute of a graph: the names of its hidden ops


@contextlib.contextmanager
def hiding_ops(graph: Any) -> Iterator[None]:
    """Hides the ops that are added to `graph` (a tf.Graph, not finalized) inside the block."""
    hidden: set[str] = _begin_hiding(graph)
    before = {op.name for op in graph.get_operations()}
    try:
        yield
    finally:
        hidden.update({op.name for op in graph.get_operations()} - before)


def _begin_hiding(graph: Any) -> set[str]:
    """The names of the ops that `graph` does not show; empty at first."""
    names: set[str] | None = getattr(graph, _HIDDEN, None)
    if names is not None:
        return names
    hidden: set[str] = set()
    as_graph_def, get_operations = graph._as_graph_def, graph.get_operations

    def shown_as_graph_def(*args: Any, **kwargs: Any) -> Any:
        graph_def, version = as_graph_def(*args, **kwargs)
        _leave_out(graph_def.node, hidden)
        return graph_def, version

    setattr(graph, _HIDDEN, hidden)
    graph._as_graph_def = shown_as_graph_def
    graph.get_operations = lambda: [op for op in get_operations() if op.name not in hidden]
    return hidden


def _leave_out(nodes: Any, hidden: set[str]) -> None:
    """Deletes the hidden ones of `nodes`; from the back, where they are: the graph was complete before."""
    left, at = len(hidden), len(nodes) - 1
    while left and at >= 0:
        if nodes[at].name in hidden:
            del nodes[at]
            left -= 1
        at -= 1
