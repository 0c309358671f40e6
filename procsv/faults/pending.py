"""Hold the faults that this process must inject into itself, as the message Inject says.

A service's loop and the trainer's link use it. A fault of _FAILPOINTS arms a failpoint for some
seconds. Any other fault happens at the process's next call of `moment`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from procsv.base.system.failpoints import FailpointRaised, arm, disarm
from procsv.ipc.messaging.watchdog_messages import Inject

_FAILPOINTS = {"fill": "disk.full=enospc", "drop": "channel.receive=torn"}


class Injected:
    """The faults of one process.

    The thread that receives messages calls `inject` and `end_expired`; any thread calls `moment`.
    """

    def __init__(self, on_waiting: Callable[[], None] = lambda: None) -> None:
        """`on_waiting` is called when a fault becomes pending."""
        self._on_waiting = on_waiting
        self._until_s: dict[str, float] = {}  # failpoint -> monotonic time of its end
        self._next: Inject | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a fault waits for the next call of `moment`."""
        return self._next is not None

    def inject(self, body: Inject, now_s: float) -> None:
        """Start a fault of _FAILPOINTS; keep any other for the next call of `moment`."""
        text = _FAILPOINTS.get(body.action)
        if text is None:
            self._next = body
            self._on_waiting()
            return
        arm(text)
        self._until_s[text.partition("=")[0]] = now_s + body.number

    def end_expired(self, now_s: float) -> None:
        """End the faults whose time has expired."""
        for name in [name for name, until_s in self._until_s.items() if now_s >= until_s]:
            del self._until_s[name]
            disarm(name)

    def moment(self) -> None:
        """Carry out the pending fault; do nothing if there is none.

        A fault raises FailpointRaised or SystemExit, or never returns.
        """
        body, self._next = self._next, None
        if body is not None:
            carry_out(body.action, body.number)


def carry_out(action: str, number: float) -> None:
    """Carry out the fault `action` on the calling thread."""
    match action:
        case "raise":
            raise FailpointRaised("a planned fault")
        case "exit":
            sys.exit(round(number))
        case "hang":
            threading.Event().wait()
