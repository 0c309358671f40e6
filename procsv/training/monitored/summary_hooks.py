"""SummarySaverHook and StepCounterHook: TensorFlow's, with what goes wrong around recoveries and feeds mended.

Used like TensorFlow's.  What they write goes to the summary service where a monitored session of ours looks after its
event files (writers.py); they do not know.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.training import basic_session_run_hooks as tf_hooks

from procsv.training.carrying import Carrying

tf1 = tf.compat.v1
log = tf1.logging


class SummarySaverHook(tf_hooks.SummarySaverHook):
    """tf.compat.v1.train.SummarySaverHook that never makes a run fail for want of a feed."""

    _carrying: Any = None
    _has_reported = False
    _request_summary: bool

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Starts anew: after a recovery, too, the first run has summaries, and the file says where it goes on."""
        self._next_step = None
        self._timer.reset()
        op = self._get_summary_op()
        self._carrying = [Carrying(each, session.graph) for each in op or ()]

    def before_run(self, run_context: Any) -> Any:
        """Asks for the summaries when they are due, along with a run that feeds what they need."""
        request = super().before_run(run_context)
        if self._request_summary and not self._can_be_had(run_context.original_args):
            self._request_summary = False
            request.fetches.pop("summary", None)
        return request

    def _can_be_had(self, args: Any) -> bool:
        lacking = [c for c in self._carrying or () if c.needs_feed and not c.fits(args.fetches, args.feed_dict)]
        if lacking and not self._has_reported:
            self._has_reported = True
            log.info("procsv: summaries wait for a run that feeds what they need")
        return not lacking


class StepCounterHook(tf_hooks.StepCounterHook):
    """tf.compat.v1.train.StepCounterHook; a rate never spans a recovery."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Counts anew: steps may have gone back, and the time of the recovery is not the steps'."""
        self._timer.reset()
        self._last_global_step = None
