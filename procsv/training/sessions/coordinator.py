"""A Coordinator that loses no error and frees blocked threads before its grace period ends.

The Supervisor and monitored sessions make a Coordinator. It is TensorFlow's class with three
repairs:

* It records an exception that follows a clean stop.
* It raises an exception that was passed to it outside an `except` block.
* If the user interrupts the program, it raises the interrupt, even if an error was recorded before.

The Coordinator cannot end a thread. Instead it calls `free`, a function that its owner has set and
that closes the session. This ends the session calls in which threads are blocked.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

# `join` takes threads for blocked if the process uses next to no CPU for IDLE_S while one of them is in a session call.
# Threads that only poll stay below IDLE_CPU_SHARE_MAX of one core. After LATE_SHARE of the grace period, the session
# is closed even if threads seem to work.
IDLE_S = 2.0
IDLE_CPU_SHARE_MAX = 0.05
LATE_SHARE = 0.75
JOIN_POLL_S = 0.05
_SESSION_FILE = tf1.Session.run.__code__.co_filename


class Coordinator(tf1.train.Coordinator):  # type: ignore[name-defined]  # tensorflow is untyped
    """TensorFlow's Coordinator; `join` calls `free` once if threads do not end by themselves."""

    def __init__(self, clean_stop_exception_types: Any = None) -> None:
        super().__init__(clean_stop_exception_types)
        self._exc_info_to_raise: ExcInfo | None
        self.free: Callable[[], None] | None = None  # closes the session that threads may be blocked in
        self.may_be_idle = False  # whether other processes do the work; then idle does not mean blocked

    def request_stop(self, ex: Any = None) -> None:
        """Ask all threads to stop, and record `ex` if it is the first error.

        `ex` is an exception or an exc_info tuple. An exception that comes after the stop is ignored
        if the stop has caused it. Otherwise it is recorded if it is the first, or if it is the
        first interrupt by the user.
        """
        info = _exc_info(ex)
        was_stopped = self._stop_event.is_set()
        super().request_stop(info)
        if info is None or not was_stopped:
            return
        with self._lock:
            recorded: ExcInfo | None = self._exc_info_to_raise
            if not self._is_consequence(info[1]) and (recorded is None or _outranks(info[1], recorded[1])):
                tf1.logging.info("Error reported to Coordinator after the stop: %s", info[1])
                self._exc_info_to_raise = info

    @property
    def has_error(self) -> bool:
        """Whether an error has been reported that `join` raises."""
        return self._exc_info_to_raise is not None

    def _is_consequence(self, error: BaseException) -> bool:
        """Return whether `error` only follows from a stop.

        A stop closes the session and the queues while threads still use them.
        """
        if isinstance(error, (tf.errors.CancelledError, *self._clean_stop_exception_types)):
            return True
        return isinstance(error, RuntimeError) and "closed Session" in str(error)

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait for all threads to end, then raise the recorded error.

        Raise RuntimeError if threads outlast the grace period.
        """
        with self._lock:
            waited_for = list(self._registered_threads.union(threads or ()))
        while any(t.is_alive() for t in waited_for) and not self.wait_for_stop(JOIN_POLL_S):
            pass
        self._wait_and_free(waited_for, stop_grace_period_secs)
        super().join(waited_for, min(0.0, stop_grace_period_secs), ignore_live_threads)

    def _wait_and_free(self, threads: list[threading.Thread], grace_s: float) -> None:
        """Wait up to `grace_s` for the threads. Free them once they seem to be blocked."""
        begun_s, pause = time.monotonic(), threading.Event()
        idle = _Idleness()
        free = self.free
        while any(t.is_alive() for t in threads) and (lasted_s := time.monotonic() - begun_s) < grace_s:
            is_idle = idle.lasted_s() >= IDLE_S and not self.may_be_idle
            is_blocked = is_idle and any(_is_in_a_session(t) for t in threads)
            if free is not None and (is_blocked or lasted_s >= grace_s * LATE_SHARE):
                names = " ".join(t.name for t in threads if t.is_alive())
                tf1.logging.info("procsv: closing the session to free threads that still run: %s", names)
                free()
                free = None
            pause.wait(min(JOIN_POLL_S, grace_s))

    @contextlib.contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """Record any exception of the block, and ask for a stop."""
        try:
            yield
        except BaseException:  # noqa: BLE001  raised again by join
            self.request_stop(sys.exc_info())


def _is_in_a_session(thread: threading.Thread) -> bool:
    """Whether `thread` is in a session call; closing the session ends such a call."""
    # Before Python 3.11.9, `_current_frames` locks the list of threads while it makes objects. A garbage collection
    # may then run another thread, which waits for that lock forever (github.com/python/cpython/issues/106883).
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        frame = sys._current_frames().get(thread.ident or 0)
    finally:
        if was_enabled:
            gc.enable()
    return frame is not None and frame.f_code.co_filename == _SESSION_FILE


class _Idleness:
    """Measures how long this process has used next to no CPU."""

    def __init__(self) -> None:
        self._since_s, self._cpu_s = time.monotonic(), time.process_time()

    def lasted_s(self) -> float:
        lasted_s, used_s = time.monotonic() - self._since_s, time.process_time() - self._cpu_s
        if used_s > IDLE_CPU_SHARE_MAX * max(lasted_s, 1.0):
            self._since_s, self._cpu_s, lasted_s = time.monotonic(), time.process_time(), 0.0
        return lasted_s


def _exc_info(ex: Any) -> ExcInfo | None:
    """Return `ex` as an exc_info tuple; None for None.

    If `ex` is no exception and no exc_info tuple, return the tuple of a ValueError that says so.
    """
    if ex is None:
        return None
    if isinstance(ex, BaseException):
        return type(ex), ex, ex.__traceback__
    if isinstance(ex, tuple) and len(ex) == 3 and isinstance(ex[1], BaseException):
        return ex
    mistake = ValueError(f"ex must be a tuple or sys.exc_info must return the current exception: {ex!r}")
    return ValueError, mistake, None


def _outranks(error: BaseException, recorded: BaseException) -> bool:
    """Return whether `error` replaces the recorded error: only an interrupt by the user does.

    An interrupt causes some of the errors that are recorded before it arrives.
    """
    return isinstance(error, KeyboardInterrupt) and not isinstance(recorded, KeyboardInterrupt)
