"""Forks that the program makes itself (workers of multiprocessing, loaders of data): a signal to one is none to the run.

Called by the bootstrap, which catches the signals that ask the trainer to end.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any


def leave_forks_alone(writer: int, handler: Callable[..., None], before: Mapping[signal.Signals, Any]) -> None:
    """Gives each fork the handlers of `before`, where the program has not put others in the place of `handler`.

    `writer`: where the interpreter writes the signals that it hears, which a fork inherits.
    """
    forking = threading.local()

    def block() -> None:
        forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, before)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, forking.mask)

    def forget() -> None:
        if (other := signal.set_wakeup_fd(-1)) != writer:
            signal.set_wakeup_fd(other)
        for notice, old in before.items():
            if signal.getsignal(notice) is handler:
                signal.signal(notice, old)
        unblock()  # what has come since the fork is heard now

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=forget)
