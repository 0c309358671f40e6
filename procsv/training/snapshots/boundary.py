"""The step boundary: the moment between two calls on the training thread, when state is consistent.

A training thread usually takes its steps by calling something, such as `session.run`, and each of
these calls ends at the boundary.  If nothing is due, that costs a lock, an attribute read and two
clock reads.  `CallTimes` keeps the durations of the calls.  Some programs, such as a loop with a
CheckpointManager, take steps that go through no call of procsv.  They say where a step ends
(`end_step`).

A program may take several calls for one step, such as one for each optimizer of a GAN.  Then the
step has boundaries within it, and nothing tells them from the others.  Even after the call that
moves the global step, the next call may belong to this step (it may average the weights) or to the
next one.
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

QUIET_KEPT = 31  # durations of the newest calls that no snapshot overlapped
QUIET_MIN = 5  # calls needed for a meaningful median
CALL_FACTOR_MAX = 5.0  # in medians; a longer call, such as an evaluation, counts as this long, as it is no usual step


class Boundary:
    """The boundary of the training thread.

    The training thread is the thread that creates this object, unless another thread makes the
    first step.  Any thread may set `due`.  The training thread then calls `visit`, with the lock
    held, when its current call ends, or its next one if none is running.  While another thread
    holds `lock`, the training thread is between two calls.
    """

    __slots__ = (
        "_begun_s",
        "about",
        "due",
        "elsewhere",
        "gate",
        "inside",
        "is_settled",
        "is_torn",
        "lock",
        "makes_step",
        "runs",
        "thread",
        "times",
        "visit",
    )

    def __init__(self, visit: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        self.due = False
        self.runs = 0  # finished calls; the heartbeat shows them as progress
        self.elsewhere = 0  # approximate number of calls on other threads, and of nested calls
        self.about: Any = None  # what the source of state has noted about the current or last call; None: unknown
        # The training thread is in a call or at the boundary.  A nested call, such as one by a
        # callback, passes straight through.  Only the training thread sets this.
        self.inside = False
        # The newest call still runs, or it has raised.  A call that raised may have made half a step,
        # and only the program knows what to do about that.
        self.is_torn = False
        self.thread = threading.get_ident()
        self.makes_step: Callable[[Any], bool] | None = None  # tells from a call's `about` whether it makes a step
        self.is_settled = False  # the training thread has made a step, and stays the training thread
        self.visit = visit
        self.gate: StepGate | None = None  # lets the chief hold this task between two steps
        self.times = CallTimes()
        self._begun_s = 0.0  # when the present step began, if steps are not calls; otherwise 0.0

    @property
    def is_ahead(self) -> bool:
        """Whether a call made now would pass the boundary: on its thread and not nested."""
        return not self.inside and threading.get_ident() == self.thread

    @property
    def is_in_call(self) -> bool:
        """Whether the training thread is certainly in a call, or at the boundary that ends it.

        False if steps are not calls: then a step looks the same as the program's own code between
        two steps.
        """
        return self.inside and not self._begun_s

    @property
    def is_trained_here(self) -> bool:
        """Whether the program marks its own steps and this thread takes them.

        If so, no other thread can take one.
        """
        return bool(self._begun_s) and threading.get_ident() == self.thread

    def pass_call(self, call: Callable[..., Any], args: tuple[Any, ...] = (), about: Any = None) -> Any:
        """Runs `call(*args)` as one call of the training thread, with the boundary at its end.

        Nested calls and calls on other threads pass straight through.  `about` becomes
        `self.about`.
        """
        if not self.is_settled and not self.inside:
            self._settle(about)
        if self.inside or threading.get_ident() != self.thread:
            result = call(*args)
            self.elsewhere += 1
            return result
        with self.lock:
            self.inside, self.about = True, about
            try:
                if self.gate is not None:
                    call = self.gate.guard(call)
                begun_s = time.perf_counter()  # not from a Clock: it is read twice a step
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

    def _settle(self, about: Any) -> None:
        """Makes the calling thread the training thread if it is about to make the first step.

        A call on the training thread counts as a step if nothing is known about it.
        """
        if about is None or self.makes_step is None:
            self.is_settled = threading.get_ident() == self.thread
        elif self.makes_step(about):
            with self.lock:
                if not self.is_settled and not self.inside:
                    self.thread, self.is_settled = threading.get_ident(), True

    def begin_steps(self) -> None:
        """Begins the first step.  Each `end_step` ends one and begins the next, until
        `leave_steps`.

        For programs whose steps go through no call of procsv.  Their state is consistent only where
        they say so, so this thread keeps the lock all the time.
        """
        self.lock.acquire()
        self.inside = True
        self._begun_s = time.perf_counter()

    def end_step(self) -> None:
        """Ends the present step here, at the boundary."""
        self.times.add_call(time.perf_counter() - self._begun_s)
        failpoint("trainer.step")
        self.runs += 1
        if self.due:
            self.visit()
        self._begun_s = time.perf_counter()

    def leave_steps(self) -> None:
        """Releases the lock: this thread takes no more steps."""
        self.inside = False
        self.lock.release()

    def is_reached_within(self, timeout_s: float) -> bool:
        """Whether the training thread is between two calls, or gets there within `timeout_s`.

        The limit is needed because the thread may be stuck in a call forever.  The training thread
        itself always gets True.
        """
        if threading.get_ident() == self.thread:
            return True
        if is_reached := self.lock.acquire(timeout=timeout_s):
            self.lock.release()
        return is_reached

    @contextlib.contextmanager
    def hold_thread(self) -> Iterator[None]:
        """Keeps the training thread between two calls.  Any thread may use it.

        Called on the training thread within a call, it does nothing.
        """
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
    """Times of the training thread's calls, and what a snapshot costs the calls that overlap it.

    Training continues while a captured snapshot is copied into its slot.  The copy takes cores and
    memory bandwidth from the steps beside it, and a step that changes a captured variable must
    first copy that variable (copy on write).  The cost of a snapshot is how much longer these
    *overlapped* steps take than the mean of the other, *quiet* steps.  Other programs that slow
    training down do not distort this, because they slow both kinds of steps.

    The boundary feeds this object, and the snapshotter reads it.  Times are in seconds.  `add_call`
    runs on the training thread, the other methods on the thread that takes the snapshot.
    """

    __slots__ = ("_is_copied", "_lost", "_overlapped", "_quiet")

    def __init__(self) -> None:
        self._quiet: deque[float] = deque(maxlen=QUIET_KEPT)
        self._overlapped: list[float] | None = None  # calls since the last capture; None once its copy has ended
        self._is_copied = False  # the copy ended during the current call or, if none is running, after the last one
        self._lost: float | None = (
            None  # seconds that the last snapshot cost the overlapped calls; None: unknown, or taken
        )

    def add_call(self, call_s: float) -> None:
        if self._overlapped is None:
            self._quiet.append(call_s)
            return
        self._overlapped.append(call_s)
        if self._is_copied:
            self._lost, self._overlapped = self._sum_loss(self._overlapped), None

    def captured(self) -> None:
        """Marks a capture: the next calls overlap the snapshot."""
        self._overlapped, self._is_copied = [], False

    def copied(self) -> None:
        """Marks the end of the copy.

        The current call, or the next one if none is running, is the last that counts as overlapped.
        """
        self._is_copied = True

    def take_lost(self) -> float | None:
        """Returns what the last snapshot cost the calls that overlapped it.

        None if that is unknown, or was returned before.
        """
        lost, self._lost = self._lost, None
        return lost

    @property
    def median_s(self) -> float:
        """Median of the calls that no snapshot overlaps; 0.0 if unknown."""
        quiet = list(self._quiet)
        return statistics.median(quiet) if len(quiet) >= QUIET_MIN else 0.0

    def _sum_loss(self, overlapped: list[float]) -> float | None:
        longest_s = CALL_FACTOR_MAX * self.median_s
        if not longest_s:
            return None
        usual_s = statistics.fmean(min(call_s, longest_s) for call_s in self._quiet)
        return sum(min(call_s, longest_s) - usual_s for call_s in overlapped)
