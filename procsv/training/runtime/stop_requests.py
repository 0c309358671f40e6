"""Stop requests to a training process: by its watchdog, by a signal, or by the lifeline.

The Runtime holds them.  The process acts on the first request; a later one may only correct its
reason.  A program that handles SIGTERM itself first gets time to end by itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from procsv.base.clock import Clock
from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.watchdog_messages import StopTraining
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.runtime.log import surviving_errors
from procsv.training.runtime.trainer_heartbeat import TrainerHeartbeat

StopListener = Callable[[Reason], None]


class StopRequests:
    """Why and since when this process must stop, and who is notified."""

    def __init__(
        self, clock: Clock, heartbeat: TrainerHeartbeat, leave_to_program: Callable[[Reason, float], bool]
    ) -> None:
        """`leave_to_program(reason, grace_s)`: whether the program will handle a stop itself."""
        self.reason: Reason | None = None
        self.asked_s = 0.0
        # The program gets time to end by itself first. With `is_left_to_end_run`, the run ends with the program.
        self.is_left = self.is_left_to_end_run = False
        self._clock, self._heartbeat, self._leave_to_program = clock, heartbeat, leave_to_program
        self._interrupt: Callable[[], None] = lambda: None
        self._listeners: list[StopListener] = []
        self._lock = threading.RLock()

    @property
    def is_asked(self) -> bool:
        """Whether the watchdog, a signal or the lifeline has requested a stop.

        True also while a program that handles the stop itself gets time for that.
        """
        return self.is_left or self.reason is not None

    def add_listener(self, listener: StopListener) -> None:
        """Calls `listener` when a stop is requested, or immediately if it already was."""
        with self._lock:
            self._listeners.append(listener)
            reason = self.reason
        if reason is not None:
            listener(reason)

    def remove_listener(self, listener: StopListener) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._listeners.remove(listener)

    @contextlib.contextmanager
    def interrupting(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Within the block, `interrupt` ends a program without a session when its run must end."""
        self._interrupt = interrupt
        try:
            yield
        finally:
            self._interrupt = lambda: None

    def handle_message(self, body: StopTraining) -> None:
        """Handles the watchdog's request, on the link's thread."""
        is_left = self.ask_program(body.reason, body.grace_s)
        self.is_left_to_end_run = is_left and body.ends_run
        if body.ends_run and self._heartbeat.phase is Phase.IMPORT and not is_left:
            self._interrupt()

    def ask_program(self, reason: Reason, grace_s: float) -> bool:
        """Requests a stop; True if the program handles SIGTERM, and so may end by itself first.

        If it may, `request_stop` is not called yet.
        """
        if self.is_left:
            return True
        if self.reason is None:
            self.asked_s = self._clock.monotonic()
            self.is_left = self._leave_to_program(reason, grace_s)
        if not self.is_left:
            self.request_stop(reason)
        return self.is_left

    def request_stop(self, reason: Reason) -> None:
        """Asks this process to save and end, for the watchdog, a signal or the lifeline.

        A signal arrives before the watchdog's message and always means "preempt".  The message then
        gives the real reason.
        """
        with self._lock:
            if self.reason is not None:
                if self.reason == "preempt":
                    self.reason = reason
                return
            self.reason = reason
            if not self.is_left:
                self.asked_s = self._clock.monotonic()
            listeners = list(self._listeners)
        for listener in listeners:
            with surviving_errors():
                listener(reason)

    def forget_request(self) -> None:
        """Clears the request: another run has begun."""
        self.reason = None
