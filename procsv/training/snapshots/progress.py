"""Reads the global step for the heartbeat, now and then, from a thread of its own.

Called by a TrainingRun for as long as its session lives.  Only ever reads; a session that is being closed ends it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from procsv.training.runtime.context import Runtime

tf1 = tf.compat.v1

READ_EVERY_S = 0.5  # the contract is "at least once a second"


class StepReader:
    """`session.run(global_step)` as an int, without passing the boundary; -1 without a global step."""

    def __init__(self, session: Any, global_step: Any | None) -> None:
        self._call: Callable[[], Any] | None = None
        if global_step is not None:
            tensor = session.graph.as_graph_element(global_step, allow_operation=False)
            with session.graph.as_default():
                self._call = tf1.Session.make_callable(session, tensor)

    def read(self) -> int:
        return -1 if self._call is None else int(np.asarray(self._call()).reshape(()))


class Progress:
    """The thread that keeps `runtime.step` fresh."""

    def __init__(self, runtime: Runtime, reader: StepReader) -> None:
        self._runtime, self._reader = runtime, reader
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="procsv-progress", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._end.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._end.wait(READ_EVERY_S)  # then once more: it is the last step that people will see
            try:
                self._runtime.step = self._reader.read()
            except (RuntimeError, tf.errors.OpError):
                return  # the session is closed or broken: whoever trains with it will hear of it
