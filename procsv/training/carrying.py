"""Whether the summaries can be fetched along with a run of the user's, so that they show that very step.

Asked by the session on the training thread, only while a summary is due.  A summary op that is run by itself takes a batch from the
input that no step is trained on, and draws random numbers that shift all that follow.  Looks at the graph
only; the session does the running.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1

# Stateful ops that change nothing when they run once more: reading variables, handles, how full a queue is.
_HARMLESS = frozenset(
    {
        "VarHandleOp",
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "Variable",
        "VariableV2",
        "VarIsInitializedOp",
        "IsVariableInitialized",
        "HashTable",
        "HashTableV2",
        "LookupTableFindV2",
        "LookupTableSizeV2",
        "Iterator",
        "IteratorV2",
        "OneShotIterator",
        "FIFOQueueV2",
        "RandomShuffleQueueV2",
        "PaddingFIFOQueueV2",
        "PriorityQueueV2",
        "QueueSizeV2",
        "QueueIsClosedV2",
        "Timestamp",
    }
)


class Carrying:
    """What fetching one op means, alone or with a run of the user's."""

    def __init__(self, op: Any, graph: Any) -> None:
        """`op`: the op or tensor that is due now and then."""
        self._graph = graph
        self._op = graph.as_graph_element(op)
        self._known: dict[tuple[frozenset[str], frozenset[str]], bool] = {}
        needs = [o for o in self._above([self._op], frozenset()) if _takes(o)]
        self.needs_feed = any(o.type == "Placeholder" for o in needs)
        self.is_harmless_alone = not needs  # running it by itself takes nothing from anybody

    def fits(self, fetches: Any, feed_dict: Any) -> bool:
        """Whether a run of `fetches` does all that the op needs anyway: fetching it too takes nothing more."""
        try:
            wanted = [self._graph.as_graph_element(f) for f in tf.nest.flatten(fetches, expand_composites=True)]
            fed = frozenset(self._graph.as_graph_element(t).name for t in feed_dict or ())
        except (TypeError, ValueError, KeyError):
            return False  # something that only TensorFlow itself knows how to fetch
        key = (frozenset(element.name for element in wanted), fed)
        if key not in self._known:
            self._known[key] = self._is_covered(wanted, fed)
        return self._known[key]

    def _is_covered(self, wanted: list[Any], fed: frozenset[str]) -> bool:
        runs_anyway = self._above(wanted, fed)
        if not any(_takes(op) or _changes(op) for op in runs_anyway):
            return False  # no training step: somebody only looks at something
        return not any(_takes(op) for op in self._above([self._op], fed) - runs_anyway)

    def _above(self, elements: list[Any], fed: frozenset[str]) -> set[Any]:
        """All ops that must run for `elements`, given what is fed."""
        found: set[Any] = set()
        to_see = [e if isinstance(e, tf.Operation) else e.op for e in elements if e.name not in fed]
        while to_see:
            op = to_see.pop()
            if op not in found:
                found.add(op)
                to_see += [tensor.op for tensor in op.inputs if tensor.name not in fed]
                to_see += op.control_inputs
        return found


def _takes(op: Any) -> bool:
    """Whether running `op` once more than the program does would be noticed, or fails."""
    return op.type == "Placeholder" or (bool(op.op_def.is_stateful) and op.type not in _HARMLESS)


def _changes(op: Any) -> bool:
    """Whether `op` updates a ref variable; those ops are not marked stateful."""
    return any(tensor.dtype._is_ref_dtype for tensor in op.outputs) and op.type not in _HARMLESS


class Errand:
    """One op that is due, taken along by the next run that does what it needs anyway."""

    def __init__(self, carrying: Carrying, op: Any, read_step: Callable[[], int]) -> None:
        self.op = op
        self.is_over = False
        self.value: Any = None  # None after `is_over`: the run has failed
        self.step = -1
        self._carrying, self._read_step = carrying, read_step

    def fits(self, fetches: Any, feed_dict: Any) -> bool:
        return self._carrying.fits(fetches, feed_dict)

    def done(self, value: Any) -> None:
        """On the training thread, between two calls: the step is the one that the value is of."""
        self.value, self.step = value, self._read_step()
        self.is_over = True

    def dropped(self) -> None:
        """The run has failed: its error is the user's to see."""
        self.is_over = True
