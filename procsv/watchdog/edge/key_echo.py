"""Echo of typed keys on a terminal with live rows: off as long as they are drawn there.

Used by console.py.  An echoed Enter moves the cursor away from the rows that are to be drawn again, and what was drawn stays as it is.
Keys reach the shell afterwards as they always do, and Ctrl-C works.  Killed in between: shells set their terminal up again
themselves after a program that was killed or stopped.
"""

from __future__ import annotations

import contextlib
import signal
import termios
from typing import Any

_LOCAL_FLAGS = 3  # their place in what tcgetattr gives


class KeyEcho:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before: list[Any] | None = None

    def turn_off(self) -> None:
        """Once, until `restore`; only where the terminal is ours."""
        if self._before is not None:
            return
        with contextlib.suppress(termios.error):
            before = termios.tcgetattr(self._fd)
            self._before = before
            self._apply([*before[:_LOCAL_FLAGS], before[_LOCAL_FLAGS] & ~termios.ECHO, *before[_LOCAL_FLAGS + 1 :]])

    def restore(self) -> None:
        """As it was."""
        before, self._before = self._before, None
        if before is not None:
            with contextlib.suppress(termios.error):  # the terminal is gone
                self._apply(before)

    def forget(self) -> None:
        """A shell has the terminal back, and has set it up as it likes it."""
        self._before = None

    def _apply(self, attributes: list[Any]) -> None:
        # If the shell takes the terminal back at this moment, the signal would stop us for it.
        was = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            termios.tcsetattr(self._fd, termios.TCSANOW, attributes)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, was)
