"""Reads the global step for the heartbeat, now and then, from a thread of its own.

Called by a TrainingRun for as long as it goes on.  Only ever reads; a source that cannot be read any more ends it.
"""

from __future__ import annotations

import threading

from procsv.training.runtime.context import Runtime
from procsv.training.snapshots.source import StateSource

READ_EVERY_S = 0.5  # the contract is "at least once a second"


class Progress:
    """The thread that keeps `runtime.step` fresh."""

    def __init__(self, runtime: Runtime, source: StateSource) -> None:
        self._runtime, self._source = runtime, source
        self._failures: tuple[type[Exception], ...] = (RuntimeError, *source.errors)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="procsv-progress", daemon=True)

    def start_reading(self) -> None:
        self._thread.start()

    def stop_reading(self) -> None:
        self._end.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._end.wait(READ_EVERY_S)  # then once more: it is the last step that people will see
            try:
                self._runtime.step = self._source.read_step()
            except self._failures:
                return  # it is closed or broken: whoever trains with it will hear of it
