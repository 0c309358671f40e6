"""Wrap TensorFlow's session in the layers of a monitored session, as TensorFlow does, with repairs.

    _RecoverableSession   makes a new session after AbortedError or UnavailableError
    _CoordinatedSession   stops and joins the threads when it is closed
    _HookedSession        calls the hooks around each run

MonitoredSession builds these layers around the *raw* session. A run and its hooks count as one call
of the training thread. The step boundary is at the end of this call, so the snapshot of a step
includes what the hooks do after the step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.training import monitored_session as tf_monitored
from tensorflow.python.training.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunValues

tf1 = tf.compat.v1
log = tf1.logging

PREEMPTION_ERRORS = (tf.errors.AbortedError, tf.errors.UnavailableError)
PAUSE_S_MIN = 0.1  # the pause before the second of several tries; the first try starts immediately
PAUSE_S_MAX = 30.0

LAYERS = ("_HookedSession", "_CoordinatedSession", "_RecoverableSession")  # their names in TensorFlow's module, too


def _boundary_of(session: Any) -> Any:
    return getattr(session, "_procsv_boundary", None)


class _HookedSession(tf_monitored._HookedSession):
    """Calls the hooks around each run. The run and its hooks are one call for the boundary."""

    _should_stop: bool

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        boundary = _boundary_of(self._sess)
        if boundary is None:
            return self._run(fetches, feed_dict, options, run_metadata)
        return boundary.pass_call(self._run, (fetches, feed_dict, options, run_metadata))

    def _run(self, fetches: Any, feed_dict: Any, options: Any, run_metadata: Any) -> Any:
        """Run as TensorFlow's class does, but pass options and metadata only if they are wanted.

        The caller or a hook may want them. Encoding them in every run would cost time.
        """
        if self.should_stop():
            raise RuntimeError("Run called even after should_stop requested.")
        context = SessionRunContext(original_args=SessionRunArgs(fetches, feed_dict), session=self._sess)
        all_fetches, all_options = {"caller": fetches}, options or tf1.RunOptions()
        all_feeds = self._call_hook_before_run(context, all_fetches, feed_dict, all_options)
        asked: dict[str, Any] = {}
        metadata = run_metadata or tf1.RunMetadata()
        if options is not None or run_metadata is not None or all_options.ByteSize():
            asked = {"options": all_options, "run_metadata": metadata}
        outputs = self._sess.run(fetches=all_fetches, feed_dict=all_feeds, **asked)
        for hook in self._hooks:
            values = SessionRunValues(outputs.get(hook), all_options, metadata)
            hook.after_run(context, values)
        self._should_stop = self._should_stop or context.stop_requested
        return outputs["caller"]


class _CoordinatedSession(tf_monitored._CoordinatedSession):
    """Ends the threads with the session; calls `before_close` first."""

    def __init__(
        self,
        sess: Any,
        coord: Any,
        stop_grace_period_secs: float = 120,
        before_close: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(sess, coord, stop_grace_period_secs)
        self._before_close = before_close

    def run_step_fn(self, step_fn: Any, raw_session: Any, run_with_hooks: Any) -> Any:
        boundary = _boundary_of(raw_session)
        if boundary is None:
            return super().run_step_fn(step_fn, raw_session, run_with_hooks)
        return boundary.pass_call(super().run_step_fn, (step_fn, raw_session, run_with_hooks))

    def close(self) -> None:
        before_close, self._before_close = self._before_close, lambda: None
        try:
            before_close()
        finally:
            super().close()


class _RecoverableSession(tf_monitored._RecoverableSession):
    """Makes new sessions until one works, without a limit of time.

    It pauses up to PAUSE_S_MAX between two tries, and logs a line for each try.
    """

    _sess: Any

    def __init__(
        self,
        sess_creator: Any,
        wait: Callable[[float], None] | None = None,
        on_lost: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """Make the first session.

        `wait(seconds)` pauses between two tries, and may raise an error to end them. `on_lost` gets
        the error with which a working session was lost, but no errors of the tries after it.
        """
        self._wait = wait or _wait
        self._on_lost = on_lost
        self._failures = 0  # in a row
        super().__init__(sess_creator)

    def _create_session(self) -> Any:
        while True:
            try:
                return self._sess_creator.create_session()
            except PREEMPTION_ERRORS as error:
                self._pause("while a session was being created", error)

    def _pause(self, when: str, error: Exception) -> None:
        pause_s = min(PAUSE_S_MAX, PAUSE_S_MIN * 2 ** min(self._failures - 1, 10)) if self._failures else 0.0
        self._failures += 1
        log.info(
            "An error was raised %s. This may be due to a preemption of, or a lost connection to, a worker or "
            "parameter server. A new session will be created in %.1f s (attempt %d). Error: %s",
            when,
            pause_s,
            self._failures,
            error,
        )
        if pause_s:
            self._wait(pause_s)

    def _check_stop(self) -> bool:
        try:
            return bool(self._sess._check_stop()) if self._sess else True
        except PREEMPTION_ERRORS as error:
            self._replace_session("while considering whether the session is complete", error)
            self._sess = self._create_session()
            return False
        except Exception:  # noqa: BLE001  the coordinator has it, and close() raises it
            return True

    def _replace_session(self, when: str, error: Exception) -> None:
        if not self._failures:
            self._on_lost(error)
        self.close()
        self._sess = None
        self._pause(when, error)

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        args = {"feed_dict": feed_dict, "options": options, "run_metadata": run_metadata}
        return self._recover("by a run", lambda _: self._sess.run(fetches, **args))

    def run_step_fn(self, step_fn: Any, raw_session: Any, run_with_hooks: Any) -> Any:
        def run(is_new: bool) -> Any:
            raw = _raw(self._sess) if is_new else raw_session  # once a new session is made, `raw_session` is closed
            return self._sess.run_step_fn(step_fn, raw, self._sess.run)

        return self._recover("by a step function", run)

    def _recover(self, when: str, run: Callable[[bool], Any]) -> Any:
        """Call `run(is_new)` until it succeeds in a working session, and return its result.

        A lost session is replaced before the next try. `is_new` says whether the session was made
        during this call.
        """
        is_new = False
        while True:
            try:
                if not self._sess:
                    self._sess, is_new = self._create_session(), True
                result = run(is_new)
            except PREEMPTION_ERRORS as error:
                self._replace_session(when, error)
            else:
                self._failures = 0
                return result


def _raw(session: Any) -> Any:
    while isinstance(session, tf_monitored._WrappedSession):
        session = session._sess
    return session


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)
