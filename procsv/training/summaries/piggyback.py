"""Compute summaries with a training step of the program, so that they consume nothing themselves.

The session does this on the training thread when a summary is due. A summary op that ran by itself
would take a batch, and no step would train on this batch. It would also draw random numbers, which
shifts all later ones. So the computation is split. The program's own run of a training step also
fetches the tensors that depend on the batch or on random numbers. Right after the step, a second
run is fed with these tensors and computes the rest. A summary that cannot be computed (NaN in a
histogram) fails in the second run, and no step is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import tensorflow as tf

from procsv.training.summaries.graph_walk import (
    REF_VARIABLES,
    RESOURCE_READS,
    closure,
    elements_of,
    needed_ops,
    sources_of,
)

tf1 = tf.compat.v1

# Stateful ops that change nothing when they run once more, such as reads, handles and sizes of queues.
_HARMLESS = (
    RESOURCE_READS
    | REF_VARIABLES
    | {
        "VarHandleOp",
        "RefIdentity",
        "RefSwitch",
        "RefMerge",
        "IsVariableInitialized",
        "HashTable",
        "HashTableV2",
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


class Split(msgspec.Struct, frozen=True):
    """How to compute an op with a run of the program, and a second run right after it."""

    along: tuple[Any, ...]  # the tensors that the program's run fetches in addition; if `is_whole`, the op itself
    feeds: frozenset[str]  # names of fed tensors that the second run needs, too
    is_whole: bool  # there is no second run


class PiggybackFetch:
    """Computes one op, such as a summary, with a run of the program.

    `is_harmless_alone` says that the op may run by itself instead.
    """

    def __init__(self, op: Any, graph: Any) -> None:
        """Prepare for `op`, the op or tensor to compute from time to time."""
        self._graph = graph
        self._op = graph.as_graph_element(op)
        self._known: dict[tuple[frozenset[str], frozenset[str]], Split | None] = {}
        needs = [o for o in needed_ops([self._op]) if _has_effect(o)]
        self.needs_feed = any(o.type == "Placeholder" for o in needs)
        self.is_harmless_alone = not needs  # the op consumes nothing if it runs by itself

    def split(self, fetches: Any, feed_dict: Any) -> Split | None:
        """Return how a run of `fetches` and a second run compute the op together.

        Return None if the run is no training step, if only TensorFlow can tell what it fetches, or
        if the op would consume more than the run consumes anyway.
        """
        known = elements_of(self._graph, fetches, feed_dict)
        if known is None:
            return None
        wanted, fed = known
        key = (frozenset(element.name for element in wanted), fed)
        if key not in self._known:
            self._known[key] = self._find_split(wanted, fed)
        return self._known[key]

    def compute(self, run: Callable[..., Any], split: Split, taken: list[Any], feed_dict: Any) -> Any:
        """Compute the op in a second run.

        It is fed with `taken`, the extra values that the program's run has fetched, and with the
        feeds of the program that the op needs.
        """
        fed = {t: v for t, v in (feed_dict or {}).items() if self._graph.as_graph_element(t).name in split.feeds}
        return run(self._op, {**fed, **dict(zip(split.along, taken, strict=True))})

    def _find_split(self, wanted: list[Any], fed: frozenset[str]) -> Split | None:
        runs_anyway = needed_ops(wanted, fed)
        if not any(_has_effect(op) for op in runs_anyway):
            return None  # no training step: the run only reads
        needed = needed_ops([self._op], fed)
        if any(_has_effect(op) for op in needed - runs_anyway):
            return None
        return self._cut(self._needed_along(needed, runs_anyway, fed), fed)

    def _needed_along(self, needed: set[Any], runs_anyway: set[Any], fed: frozenset[str]) -> set[Any]:
        """Return the needed ops that must be part of the program's run.

        These are the ops with an effect, and the ops that use their results and that the program's
        run executes anyway. If such a result cannot be passed to a second run, the ops that use it
        are part of the program's run, too.
        """
        users: dict[Any, list[Any]] = {op: [] for op in needed}
        for op in needed:
            for source in set(sources_of(op, fed)):
                users[source].append(op)
        tainted = closure((op for op in needed if _has_effect(op)), lambda op: users[op])
        return closure(tainted & runs_anyway, lambda op: (u for u in users[op] if not self._can_cut(op, u, fed)))

    def _can_cut(self, source: Any, user: Any, fed: frozenset[str]) -> bool:
        """Return whether `user` can run in the second run, fed with the outputs of `source`."""
        if source in user.control_inputs:
            return False
        return all(self._can_pass(t) for t in user.inputs if t.op is source and t.name not in fed)

    def _can_pass(self, tensor: Any) -> bool:
        """Return whether one run can fetch the value of `tensor` and another be fed with it."""
        dtype = tensor.dtype
        if dtype._is_ref_dtype or dtype.is_quantized or dtype in (tf.variant, tf.resource):
            return False
        return bool(self._graph.is_fetchable(tensor) and self._graph.is_feedable(tensor))

    def _cut(self, along: set[Any], fed: frozenset[str]) -> Split:
        if (self._op if isinstance(self._op, tf.Operation) else self._op.op) in along:
            return Split((self._op,), frozenset(), is_whole=True)
        later = needed_ops([self._op], fed, along)
        inputs = {tensor.name: tensor for op in later for tensor in op.inputs}
        cut = tuple(t for name, t in sorted(inputs.items()) if name not in fed and t.op in along)
        return Split(cut, fed & inputs.keys(), is_whole=False)


def _has_effect(op: Any) -> bool:
    """Return whether running `op` once more than the program does changes something, or fails."""
    if op.type in _HARMLESS:
        return False
    changes_a_ref = any(tensor.dtype._is_ref_dtype for tensor in op.outputs)  # such ops are not marked stateful
    return op.type == "Placeholder" or bool(op.op_def.is_stateful) or changes_a_ref


class PendingFetch:
    """A due computation that waits for a suitable run of the program, as `split` defines it.

    Once `is_over` is true, `value` is the result at global step `step`, or `error` says why the
    result could not be computed. If the program's own run failed, both are None.
    """

    def __init__(self, piggyback: PiggybackFetch, read_step: Callable[[], int]) -> None:
        self.is_over = False
        self.value: Any = None
        self.step = -1
        self.error: Exception | None = None
        self.piggyback, self._read_step = piggyback, read_step

    def finish_fetch(self, run: Callable[..., Any], split: Split, taken: list[Any], feed_dict: Any) -> None:
        """Compute the rest on the training thread, right after the program's run.

        No other call has run in between, so the state is still the one that the step has left.
        """
        try:
            self.value = taken[0] if split.is_whole else self.piggyback.compute(run, split, taken, feed_dict)
            self.step = self._read_step()
        except Exception as error:  # noqa: BLE001  raised where the value is awaited, because the step is not to blame
            self.error = error
        finally:
            self.is_over = True
