"""Provide the session that a program trains with: TensorFlow's own, with a boundary after each run.

`adopt_session` turns a `tf.compat.v1.Session` into a TrainingSession in place, because the user's
own session manager may have made it. On the training thread each call holds the boundary's lock, so
a snapshot is taken between two calls and is never torn.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from procsv.training.graph.patches import AttributePatch, change_type
from procsv.training.runtime.bounded_call import call_within
from procsv.training.runtime.log import log
from procsv.training.snapshots.boundary import Boundary
from procsv.training.summaries.piggyback import PendingFetch

tf1 = tf.compat.v1

CLOSE_S_MAX = 3.0  # the longest wait for the servers of a session that is closed


class TrainingSession(tf1.Session):  # type: ignore[name-defined]  # tensorflow is untyped
    """A Session whose calls on the training thread end at the boundary.

    `adopt_session` turns an existing Session into one. The constructor is never called.
    """

    _procsv_boundary: Boundary
    _procsv_pending: PendingFetch | None = None
    _procsv_at_close: Callable[[], None] | None = None

    def close(self) -> None:
        """Close the session. The training thread first calls the function that `call_at_close` set.

        That function saves the session's last state. If another thread closes the session, to
        interrupt a call, the function is dropped: it would wait for that call.
        """
        call, self._procsv_at_close = self._procsv_at_close, None
        if call is not None and self._procsv_boundary.is_ahead:
            call()
        if not self.sess_str:
            super().close()
            return
        if sys.is_finalizing():
            # No thread can start any more, so the wait for the servers could not be limited. The session ends with the
            # process instead.
            self._session = None
            return
        try:
            call_within(super().close, CLOSE_S_MAX, "closing the session")  # TensorFlow waits for each server
        except TimeoutError as late:
            log.warning("procsv: %s: a server is gone, or does not answer", late)

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        boundary, run = self._procsv_boundary, super().run
        if self._procsv_pending is not None and boundary.is_ahead:
            run = self._run_with_pending
        return boundary.pass_call(run, (fetches, feed_dict, options, run_metadata), about=fetches)

    def _run_with_pending(self, fetches: Any, feed_dict: Any, options: Any, run_metadata: Any) -> Any:
        """Run the program's call, and fetch in the same run what the pending fetch needs.

        If the run fails, the program gets the error, and the pending fetch ends without a value.
        """
        pending = self._procsv_pending
        split = pending.piggyback.split(fetches, feed_dict) if pending is not None else None
        if pending is None or split is None:
            return super().run(fetches, feed_dict, options, run_metadata)
        self._procsv_pending = None
        try:
            result, taken = super().run([fetches, list(split.along)], feed_dict, options, run_metadata)
        except BaseException:
            pending.is_over = True
            raise
        pending.finish_fetch(super().run, split, taken, feed_dict)
        return result

    def partial_run(self, handle: Any, fetches: Any, feed_dict: Any = None) -> Any:
        return self._procsv_boundary.pass_call(super().partial_run, (handle, fetches, feed_dict))

    def make_callable(self, fetches: Any, feed_list: Any = None, accept_options: bool = False) -> Any:
        call, boundary = super().make_callable(fetches, feed_list, accept_options), self._procsv_boundary

        def bounded(*args: Any, **kwargs: Any) -> Any:
            return boundary.pass_call(functools.partial(call, **kwargs), args, fetches)

        return bounded


def set_pending_fetch(session: Any, pending: PendingFetch | None) -> None:
    """Have the training thread's next suitable run also fetch for `pending`; None cancels that."""
    session._procsv_pending = pending


def call_at_close(session: Any, call: Callable[[], None] | None) -> None:
    """Have the training thread call `call` before it closes `session`; None cancels that."""
    if isinstance(session, TrainingSession):
        session._procsv_at_close = call


def adopt_session(session: Any, boundary: Boundary) -> bool:
    """Make the calls of `session` pass `boundary`.

    Return False, and change nothing, if `session` is not a plain Session but, for example, a
    wrapper that the program has made.
    """
    if type(session) not in (tf1.Session, TrainingSession):
        return False
    change_type(session, TrainingSession)
    session._procsv_boundary = boundary
    return True


# The class that defines `Session.run`.
_home: Any = next(kind for kind in tf1.Session.__mro__ if "run" in vars(kind))
_lock = threading.Lock()
_counters: list[CallCounter] = []


class CallCounter:
    """Counts the calls of all sessions that end on the thread that made the counter.

    So procsv sees progress while a program evaluates in another session. While a counter counts,
    TensorFlow's `Session.run` is wrapped. The wrapped `run` does and returns the same as before.
    """

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
