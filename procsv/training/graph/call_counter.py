"""Counts the calls of any session that end on one thread: progress, where a program evaluates in a session of its own.

Used by a TrainingRun for its training thread.  While somebody counts, TensorFlow's `Session.run` is wrapped; what it
does and returns stays as it is.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import tensorflow as tf

from procsv.training.graph.patches import AttributePatch

tf1 = tf.compat.v1

_home: Any = next(kind for kind in tf1.Session.__mro__ if "run" in vars(kind))
_lock = threading.Lock()
_counters: list[CallCounter] = []


class CallCounter:
    """Made on the thread that it counts for."""

    def __init__(self) -> None:
        self.count = 0
        self.thread = threading.get_ident()

    def start_counting(self) -> None:
        with _lock:
            _counters.append(self)
            _patch.apply()

    def stop_counting(self) -> None:
        with _lock:
            if self in _counters:
                _counters.remove(self)
            if not _counters:
                _patch.undo()


def counted(run: Any) -> Any:
    @functools.wraps(run)
    def counted(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        thread = threading.get_ident()
        for counter in _counters:
            counter.count += counter.thread == thread
        return result

    return counted


_patch = AttributePatch(_home, "run", counted)
