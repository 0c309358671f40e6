"""SummarySaverHook and StepCounterHook: TensorFlow's, repaired for recoveries and missing feeds.

Used like TensorFlow's.  In a monitored session of procsv's their events go to the summary service (writers.py), which they do
not notice.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.training import basic_session_run_hooks as tf_hooks

from procsv.training.summaries.graph_walk import elements_of, needed_ops

tf1 = tf.compat.v1
log = tf1.logging


class SummarySaverHook(tf_hooks.SummarySaverHook):
    """tf.compat.v1.train.SummarySaverHook that never makes a run fail because a feed is missing."""

    _request_summary: bool
    _needed: frozenset[str] | None = None  # placeholders of the summaries
    _known: dict[Any, bool]
    _has_reported = False

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Starts anew, after a recovery, too: the first run has summaries."""
        self._next_step = None
        self._timer.reset()
        self._known = {}
        self._needed = _placeholders_above(self._get_summary_op() or [], frozenset())

    def before_run(self, run_context: Any) -> Any:
        """Requests due summaries with a run that feeds what they need."""
        request = super().before_run(run_context)
        if self._request_summary and self._needed and not self._is_fed(run_context):
            self._request_summary = False
            request.fetches.pop("summary", None)
            if not self._has_reported:
                self._has_reported = True
                log.info("procsv: summaries wait for a run that feeds their placeholders")
        return request

    def _is_fed(self, run_context: Any) -> bool:
        """Whether this run feeds each placeholder of the summaries, or needs it, so that some hook feeds it."""
        graph, args = run_context.session.graph, run_context.original_args
        known = elements_of(graph, args.fetches, args.feed_dict)
        if known is None:
            return True
        wanted, fed = known
        key = (frozenset(element.name for element in wanted), fed)
        if key not in self._known:
            needed = _placeholders_above(self._get_summary_op(), fed)
            self._known[key] = needed <= _placeholders_above(wanted, fed)
        return self._known[key]


def _placeholders_above(elements: Any, fed: frozenset[str]) -> frozenset[str]:
    """Names of the placeholders without a default that a run of `elements` needs, except those `fed`."""
    return frozenset(op.name for op in needed_ops(elements, fed) if op.type == "Placeholder")


class StepCounterHook(tf_hooks.StepCounterHook):
    """tf.compat.v1.train.StepCounterHook; a rate never spans a recovery."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Counts anew: steps may have gone back, and the recovery's time is not theirs."""
        self._timer.reset()
        self._last_global_step = None
