"""Compute summaries from a step of the program, so that they consume nothing.

The session calls this on the training thread when a summary is due. A summary op that runs by
itself takes a batch that no step is trained on, and draws random numbers, which shifts all later
ones. So what comes from such ops is fetched with a training step, and a second run right after the
step computes the rest from it. A summary that cannot be computed (NaN in a histogram) then fails
alone, and no step is lost.
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
    """A computation in two parts: what the program's run fetches, and what a second run is fed."""

    along: tuple[Any, ...]  # the tensors that the program's run fetches in addition; if `is_whole`, the op itself
    feeds: frozenset[str]  # names of fed tensors that the second run needs, too
    is_whole: bool  # there is no second run


class PiggybackFetch:
    """The ways to compute one op: alone, or with a run of the program."""

    def __init__(self, op: Any, graph: Any) -> None:
        """Prepare for `op`, the op or tensor to compute from time to time."""
        self._graph = graph
        self._op = graph.as_graph_element(op)
        self._known: dict[tuple[frozenset[str], frozenset[str]], Split | None] = {}
        needs = [o for o in needed_ops([self._op]) if _has_effect(o)]
        self.needs_feed = any(o.type == "Placeholder" for o in needs)
        self.is_harmless_alone = not needs  # running it by itself consumes nothing

    def split(self, fetches: Any, feed_dict: Any) -> Split | None:
        """Return the split with which a run of `fetches` computes the op.

        Return None if that would consume more than the run does.
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

        It is fed with what the first run has `taken` along, and with what the first run was fed.
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
        """Return the needed ops that must be in the program's run.

        These are the ops with an effect, and what cannot be cut from them.
        """
        users: dict[Any, list[Any]] = {op: [] for op in needed}
        for op in needed:
            for source in set(sources_of(op, fed)):
                users[source].append(op)
        tainted = closure((op for op in needed if _has_effect(op)), lambda op: users[op])
        return closure(tainted & runs_anyway, lambda op: (u for u in users[op] if not self._can_cut(op, u, fed)))

    def _can_cut(self, source: Any, user: Any, fed: frozenset[str]) -> bool:
        """Return whether `user` can run later than `source`, fed with its outputs."""
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
    """One due computation, made with the program's next run that has all its effects anyway.

    When `is_over`, it has its `value` at global step `step`, or the `error` of computing it. If
    that run failed, it has neither.
    """

    def __init__(self, piggyback: PiggybackFetch, read_step: Callable[[], int]) -> None:
        self.is_over = False
        self.value: Any = None
        self.step = -1
        self.error: Exception | None = None
        self.piggyback, self._read_step = piggyback, read_step

    def finish_fetch(self, run: Callable[..., Any], split: Split, taken: list[Any], feed_dict: Any) -> None:
        """Compute the rest right after the run, on the training thread.

        No other call has come in between, so the state is still the step's.
        """
        try:
            self.value = taken[0] if split.is_whole else self.piggyback.compute(run, split, taken, feed_dict)
            self.step = self._read_step()
        except Exception as error:  # noqa: BLE001  raised where the value is awaited, because the step is not to blame
            self.error = error
        finally:
            self.is_over = True
