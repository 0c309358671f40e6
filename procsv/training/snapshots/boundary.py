"""The step boundary: the moment between two calls on the training thread, at which the state is whole.

Each step of a source of state is one call that passes the boundary.  When nothing is due, that costs a lock, an
attribute read and two looks at the clock.  How long the calls take is kept in `CallTimes`.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from procsv.base.system.failpoints import declare, failpoint
from procsv.training.runtime.step_gate import StepGate

declare("trainer.step")

QUIET_KEPT = 31
QUIET_MIN = 5  # fewer tell nothing
CALL_FACTOR_MAX = (
    5.0  # of the median: what lasts longer is another kind of call, an evaluation say, and counts as that long
)


class Boundary:
    """The boundary of the thread that makes it.

    `due` is set by anybody; `visit` is then called on the training thread, with the lock held, after the next
    call.  Whoever else holds `lock` knows that the training thread is between two calls.
    """

    __slots__ = (
        "_begun_s",
        "about",
        "due",
        "elsewhere",
        "gate",
        "inside",
        "is_torn",
        "lock",
        "runs",
        "thread",
        "times",
        "visit",
    )

    def __init__(self, visit: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        self.due = False
        self.runs = 0  # calls that have ended; progress for the heartbeat
        self.elsewhere = 0  # calls on other threads, about
        self.about: Any = None  # what the source says of the call under way, or of the last one; None: not known
        # The training thread is in a call or at the boundary: a call of its own from there (a callback's, say)
        # passes straight through.  Set by that thread alone.
        self.inside = False
        # The newest call has raised: it may have made half of a step, and only the program knows what becomes of it.
        self.is_torn = False
        self.thread = threading.get_ident()
        self.visit = visit
        self.gate: StepGate | None = None  # which a step passes, where the chief may hold this task between two
        self.times = CallTimes()
        self._begun_s = 0.0  # when the step under way began, where steps are no calls

    @property
    def is_ahead(self) -> bool:
        """Whether a call that begins here and now would end at the boundary: on its thread, and within no other."""
        return not self.inside and threading.get_ident() == self.thread

    @property
    def is_in_call(self) -> bool:
        """Whether a step is certainly under way; unknown where steps are no calls, as the program's own code lies between two."""
        return self.inside and not self._begun_s

    @property
    def is_trained_here(self) -> bool:
        """Whether the calling thread alone can make a step: always where steps are no calls."""
        return bool(self._begun_s) and threading.get_ident() == self.thread

    def pass_call(self, call: Callable[..., Any], args: tuple[Any, ...] = (), about: Any = None) -> Any:
        """`call(*args)` as one step of the training thread, with the boundary at its end.

        Calls from within, and those of other threads, pass straight through.  `about`: see there.
        """
        if self.inside or threading.get_ident() != self.thread:
            result = call(*args)
            self.elsewhere += 1
            return result
        with self.lock:
            self.inside, self.about = True, about
            try:
                if self.gate is not None:
                    call = self.gate.guard(call)
                begun_s = time.perf_counter()  # not a Clock's: it is read twice a step
                self.is_torn = True
                result = call(*args)
                self.is_torn = False
                self.times.add_call(time.perf_counter() - begun_s)
                failpoint("trainer.step")
                self.runs += 1
                if self.due:
                    self.visit()
            finally:
                self.inside = False
        return result

    def begin_steps(self) -> None:
        """From here on this thread is always within a step, until `leave_steps`; each `end_step` ends one and begins the next.

        For programs whose steps are no calls of ours: their state is whole only where they say so, and nobody else comes
        to hold the lock.
        """
        self.lock.acquire()
        self.inside = True
        self._begun_s = time.perf_counter()

    def end_step(self) -> None:
        """The step under way has ended here, at the boundary."""
        self.times.add_call(time.perf_counter() - self._begun_s)
        failpoint("trainer.step")
        self.runs += 1
        if self.due:
            self.visit()
        self._begun_s = time.perf_counter()

    def leave_steps(self) -> None:
        """What this thread does from here on is no step."""
        self.inside = False
        self.lock.release()

    def is_reached_within(self, timeout_s: float) -> bool:
        """Whether the training thread is between two calls, or comes there in time; it may be stuck in one for ever."""
        if threading.get_ident() == self.thread:
            return True
        if is_reached := self.lock.acquire(timeout=timeout_s):
            self.lock.release()
        return is_reached

    @contextlib.contextmanager
    def hold_thread(self) -> Iterator[None]:
        """Keeps the training thread between two calls, from any thread; on that thread, from within a call, too."""
        is_training_thread = threading.get_ident() == self.thread
        if is_training_thread and self.inside:
            yield
            return
        with self.lock:
            if is_training_thread:
                self.inside = True
            try:
                yield
            finally:
                if is_training_thread:
                    self.inside = False


class CallTimes:
    """Times of the training thread's calls, and what those that a snapshot overlaps lose.

    A copy takes cores and memory bandwidth from the steps beside it, and the step after a capture pays for what it copies on write.
    Both are seen in the length of those steps, against the mean of the others: where other programs make some steps long, they make
    both kinds long.  Fed by the boundary, read by the snapshotter.  In seconds.  `add_call` is called on the training thread, the others by
    whoever takes the snapshot.
    """

    __slots__ = ("_is_copied", "_lost", "_overlapped", "_quiet")

    def __init__(self) -> None:
        self._quiet: deque[float] = deque(maxlen=QUIET_KEPT)
        self._overlapped: list[float] | None = None  # calls since the last capture, as long as its copy runs
        self._is_copied = False
        self._lost: float | None = None

    def add_call(self, call_s: float) -> None:
        if self._overlapped is None:
            self._quiet.append(call_s)
            return
        self._overlapped.append(call_s)
        if self._is_copied:
            self._lost, self._overlapped = self._sum_loss(self._overlapped), None

    def captured(self) -> None:
        """Calls from here on are beside a copy, or copy on write."""
        self._overlapped, self._is_copied = [], False

    def copied(self) -> None:
        """The call that is under way, or the next one, is the last that the snapshot has slowed."""
        self._is_copied = True

    def take_lost(self) -> float | None:
        """What the calls beside the last snapshot have lost all together, once; None if that is not known."""
        lost, self._lost = self._lost, None
        return lost

    @property
    def median_s(self) -> float:
        """Of the calls that no snapshot overlaps; 0.0: not known."""
        quiet = list(self._quiet)
        return statistics.median(quiet) if len(quiet) >= QUIET_MIN else 0.0

    def _sum_loss(self, overlapped: list[float]) -> float | None:
        longest_s = CALL_FACTOR_MAX * self.median_s
        if not longest_s:
            return None
        usual_s = statistics.fmean(min(call_s, longest_s) for call_s in self._quiet)
        return sum(min(call_s, longest_s) - usual_s for call_s in overlapped)
