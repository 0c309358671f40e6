"""Session manager of workers: waits for the chief's model with growing pauses.

The default of the Supervisor and of monitored sessions.  TensorFlow's checks every `recovery_wait_secs` (30 s), so that a
worker started just before its chief is ready loses half a minute, and it gives up one period early.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import tensorflow as tf

from procsv.training.graph.restore import SessionManager

tf1 = tf.compat.v1

FIRST_PAUSE_S = 0.25  # after the first check; doubles up to recovery_wait_secs


class WaitingSessionManager(SessionManager):
    """A SessionManager whose pauses grow while it waits for a session."""

    def wait_for_session(self, master: str, config: Any = None, max_wait_secs: float | None = float("inf")) -> Any:
        """A session whose model is ready; DeadlineExceededError if none is after `max_wait_secs`."""
        self._target = master
        limit_s = float("inf") if max_wait_secs is None else max_wait_secs
        deadline_s, pause_s = time.monotonic() + limit_s, min(FIRST_PAUSE_S, self._recovery_wait_secs)
        while True:
            session = tf1.Session(master, graph=self._graph, config=config)
            try:
                why_local, why = self._why_not_ready(session)
            except BaseException:
                self._safe_close(session)
                raise
            if why_local is None and why is None:
                return session
            self._safe_close(session)
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise tf.errors.DeadlineExceededError(
                    None, None, f"Session was not ready after waiting {int(limit_s)} secs."
                )
            tf1.logging.info("Waiting for model to be ready.  Ready_for_local_init_op:  %s, ready: %s", why_local, why)
            threading.Event().wait(min(pause_s, left_s))
            pause_s = min(2 * pause_s, self._recovery_wait_secs)

    def _why_not_ready(self, session: Any) -> tuple[str | None, str | None]:
        """The answers of the two checks; None, None if the model is ready."""
        is_initialized, why_local = self._try_run_local_init_op(session)
        if not is_initialized:
            return why_local or "not ready", None
        is_ready, why = self._model_ready(session)
        return None, None if is_ready else why or "not ready"
