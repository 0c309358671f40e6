"""A descriptor by which a thread wakes the loop, which looks at every turn whether it has rung, and seldom has to ask the kernel."""

from __future__ import annotations

import contextlib
import os


class Bell:
    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._has_rung = False

    def ring(self) -> None:
        """From any thread: `fd` can be read."""
        os.eventfd_write(self.fd, 1)
        self._has_rung = True  # last: whoever sees it finds something to read

    def take_back(self) -> None:
        """`fd` can be read no more, until it rings again; where a thread rings just now, after one turn more."""
        if self._has_rung:
            self._has_rung = False  # first: what rings from here on is seen in the next turn
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.fd)

    def close(self) -> None:
        os.close(self.fd)
