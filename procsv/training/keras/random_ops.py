"""Random operations in a training function that count by themselves: no snapshot holds their count, and a resumed fit draws other numbers.

Looked for by a Fit once its function is traced, off the training thread: all graphs that it is made of are walked.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from procsv.training.eager.private import find_op
from procsv.training.keras import private
from procsv.training.runtime.log import log

NAMED_MAX = 3

_said: set[str] = set()


def look_for_counting_ops(model: Any) -> None:
    """Says once which they are, and what to use instead."""
    threading.Thread(target=_look, args=(model,), name="procsv-random-ops", daemon=True).start()


def _look(model: Any) -> None:
    found = find_counting_ops(model)
    if not found or ", ".join(found) in _said:
        return
    _said.add(", ".join(found))
    more = f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    log.warning(
        "procsv: the training function of %s has random operations that count by themselves (%s%s): a resumed fit draws other numbers "
        "than one that was not interrupted.  Use keras.random with a keras.random.SeedGenerator, or a tf.random.Generator",
        type(model).__qualname__,
        ", ".join(found[:NAMED_MAX]),
        more,
    )


def find_counting_ops(model: Any) -> list[str]:
    """Each by its kind and its place: the layers that it is in."""
    found = dict[str, None]()
    for graph in private.traced_graphs(model):
        definition = graph.as_graph_def()
        functions = [definition.node, *(function.node_def for function in definition.library.function)]
        found |= dict.fromkeys(text for nodes in functions for text in _counting(nodes))
    return list(found)


def _counting(nodes: Any) -> Iterator[str]:
    for node in nodes:
        if "seed" in node.attr and "seed2" in node.attr and _is_stateful(node.op):
            place = node.name.rpartition("/")[0]
            yield f"{node.op} in {place}" if place else node.op


def _is_stateful(kind: str) -> bool:
    op = find_op(kind) if find_op is not None else None
    return op is not None and bool(op.is_stateful)
