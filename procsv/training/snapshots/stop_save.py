"""What is done at once when the machine is about to go away, or the run is to end.

Used by a TrainingRun.  A program that looks at `should_stop` ends within a step, and the end of its session saves its state: it
is left alone for a moment.  Else the state is taken from here, from a thread of its own: at the next boundary, or while
the program does something else between two calls, or beside a long call that changes nothing of what is saved.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from procsv.ipc.messaging.messages import Reason
from procsv.ipc.shm.slot_file import NoRoom
from procsv.training.runtime.log import log
from procsv.training.snapshots.boundary import Boundary
from procsv.training.snapshots.source import StateSource

if TYPE_CHECKING:
    from procsv.training.snapshots.snapshotter import Snapshotter

PATIENCE_S = 1.0  # in which most programs come to their end, or at least to a boundary
AGAIN_S = 0.5


class Notice:
    """The answer to one stop request.  `answer` returns at once."""

    def __init__(
        self,
        boundary: Boundary,
        snapshots: Snapshotter,
        source: StateSource,
        reason: Callable[[], Reason],
        take: Callable[[Reason], object],
    ) -> None:
        """`take` takes a snapshot with the training thread held between two calls.  `reason` is asked when it is needed: a
        signal comes before the message that says what it is about.
        """
        self._boundary, self._snapshots, self._source = boundary, snapshots, source
        self._reason, self._take = reason, take
        self._failures: tuple[type[Exception], ...] = (RuntimeError, TimeoutError, OSError, NoRoom, *source.errors)
        self._over = threading.Event()

    def answer(self) -> None:
        threading.Thread(target=self._run, name="procsv-notice", daemon=True).start()

    def end(self) -> None:
        """The session ends: its own last save takes over."""
        self._over.set()

    def _run(self) -> None:
        seen = self._boundary.runs
        while not self._over.wait(PATIENCE_S if seen == self._boundary.runs else AGAIN_S):
            try:
                if self._try(seen):
                    return
            except self._failures as failure:
                if not self._over.is_set():
                    log.error("procsv: the state could not be taken at once: %s", failure)
                return
            seen = self._boundary.runs

    def _try(self, seen: int) -> bool:
        """True if there is nothing more to do."""
        if self._boundary.runs != seen:
            self._snapshots.owe(self._reason(), exactly=False)  # it trains on: at its next boundary
            return True
        if self._boundary.lock.acquire(timeout=0.1):
            self._boundary.lock.release()
            self._take(self._reason())
            return True
        return self._take_beside(seen)

    def _take_beside(self, seen: int) -> bool:
        """The training thread is in a long call."""
        boundary = self._boundary
        if self._source.may_change():
            return False  # it may be changing the state right now: its end is waited for
        return self._snapshots.take_beside(self._reason(), lambda: boundary.runs == seen and boundary.lock.locked())
