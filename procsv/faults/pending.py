"""Faults that this process was told to inject into itself (message Inject).

Used by the loop of a service and by the trainer's link.  A fault that lasts some seconds is a failpoint armed for that time;
any other happens at the process's next `moment`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from procsv.base.failpoints import FailpointRaised, arm, disarm
from procsv.ipc.messaging.messages import Inject

_FAILPOINTS = {"fill": "disk.full=enospc", "drop": "channel.receive=torn"}


class Injected:
    """One process's.  `take` and `tick` are called by the thread that hears messages, `moment` by any."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}  # failpoint -> monotonic time of its end
        self._next: Inject | None = None
        self.on_waiting: Callable[[], None] = lambda: None  # called when something has come to wait for a moment

    @property
    def is_waiting(self) -> bool:
        """Whether the next moment will be a bad one."""
        return self._next is not None

    def take(self, body: Inject, now_s: float) -> None:
        """From now on, or at the next moment."""
        text = _FAILPOINTS.get(body.action)
        if text is None:
            self._next = body
            self.on_waiting()
            return
        arm(text)
        self._until_s[text.partition("=")[0]] = now_s + body.number

    def tick(self, now_s: float) -> None:
        """Ends what has lasted long enough."""
        for name in [name for name, until_s in self._until_s.items() if now_s >= until_s]:
            del self._until_s[name]
            disarm(name)

    def moment(self) -> None:
        """Does what waits for a moment: raises FailpointRaised or SystemExit, or never returns."""
        body, self._next = self._next, None
        if body is not None:
            befall(body.action, body.number)


def befall(action: str, number: float) -> None:
    """Has the fault `action` on the calling thread."""
    match action:
        case "raise":
            raise FailpointRaised("a fault of the plan")
        case "exit":
            sys.exit(round(number))
        case "hang":
            threading.Event().wait()
