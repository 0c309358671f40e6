"""The session that a program trains with: TensorFlow's own, with a boundary after each run.

A `tf.compat.v1.Session` becomes a TrainingSession in place (`adopt`), whoever made it: session managers may be
the user's own.  On the training thread each call holds the boundary's lock, so that a snapshot is taken between
two calls and is never torn; when nothing is due, a boundary costs a lock and an attribute read.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from procsv.base.failpoints import declare, failpoint
from procsv.training.graph.patches import TypePatch
from procsv.training.summaries.piggyback import PendingFetch

tf1 = tf.compat.v1

declare("trainer.step")


class Boundary:
    """The moment between two calls on the training thread.

    `due` is set by anybody; `visit` is then called on the training thread, with the lock held, after the next
    call.  Whoever else holds `lock` knows that the training thread is between two calls.
    """

    __slots__ = ("due", "elsewhere", "fetches", "inside", "lock", "pending_fetch", "runs", "thread", "visit")

    def __init__(self, visit: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        self.due = False
        self.runs = 0  # calls that have ended; progress for the heartbeat
        self.elsewhere = 0  # calls on other threads, about
        self.fetches: Any = (
            None  # of the call on the training thread that is going on, or was the last; None: not known
        )
        self.pending_fetch: PendingFetch | None = None  # what the next call that fits takes along
        # The training thread is in a call or at the boundary: a call of its own from there (a callback's, a Saver's)
        # passes straight through.  Set by that thread alone.
        self.inside = False
        self.thread = threading.get_ident()
        self.visit = visit

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
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


class TrainingSession(tf1.Session):  # type: ignore[name-defined]  # tensorflow is untyped
    """A Session whose calls on the training thread end at the boundary.  Made by `adopt`, never constructed."""

    _procsv_boundary: Boundary

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        boundary = self._procsv_boundary
        if boundary.inside or threading.get_ident() != boundary.thread:
            result = super().run(fetches, feed_dict, options, run_metadata)
            boundary.elsewhere += 1
            return result
        with boundary.lock:
            boundary.inside = True
            boundary.fetches = fetches
            try:
                pending_fetch = boundary.pending_fetch
                if pending_fetch is None or not pending_fetch.fits(fetches, feed_dict):
                    result = super().run(fetches, feed_dict, options, run_metadata)
                else:
                    result = self._run_with(pending_fetch, fetches, feed_dict, options, run_metadata)
                failpoint("trainer.step")
                boundary.runs += 1
                if boundary.due:
                    boundary.visit()
            finally:
                boundary.inside = False
        return result

    def _run_with(
        self, pending_fetch: PendingFetch, fetches: Any, feed_dict: Any, options: Any, run_metadata: Any
    ) -> Any:
        """The user's run, which takes along what the errand needs of it; if it fails, the error is the user's."""
        self._procsv_boundary.pending_fetch = None
        try:
            result, taken = super().run([fetches, pending_fetch.along], feed_dict, options, run_metadata)
        except BaseException:
            pending_fetch.dropped()
            raise
        pending_fetch.finish(super().run, taken, feed_dict)
        return result

    def partial_run(self, handle: Any, fetches: Any, feed_dict: Any = None) -> Any:
        return pass_boundary(self._procsv_boundary, super().partial_run, (handle, fetches, feed_dict), {})

    def make_callable(self, fetches: Any, feed_list: Any = None, accept_options: bool = False) -> Any:
        call, boundary = super().make_callable(fetches, feed_list, accept_options), self._procsv_boundary

        def bounded(*args: Any, **kwargs: Any) -> Any:
            return pass_boundary(boundary, call, args, kwargs, fetches)

        return bounded


def pass_boundary(
    boundary: Boundary, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], fetches: Any = None
) -> Any:
    """`call` as one call of the training thread: the boundary is at its end, and calls of the session within are part of it.

    `fetches`: what it fetches, where that is known.
    """
    if boundary.inside or threading.get_ident() != boundary.thread:
        result = call(*args, **kwargs)
        boundary.elsewhere += 1
        return result
    with boundary.lock:
        boundary.inside = True
        boundary.fetches = fetches
        try:
            result = call(*args, **kwargs)
            boundary.runs += 1
            if boundary.due:
                boundary.visit()
        finally:
            boundary.inside = False
    return result


def adopt(session: Any, boundary: Boundary) -> bool:
    """Makes `session` pass `boundary`; False if it is no plain Session (a wrapper of the user's, say)."""
    if type(session) not in (tf1.Session, TrainingSession):
        return False
    TypePatch(session, TrainingSession).apply()
    session._procsv_boundary = boundary
    return True
