"""Read what the measured program reports about its steps, from the pipe that it writes to.

Called by restart.py and idle.py. It uses one thread, and never waits without a deadline.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

READ_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Mark:
    """Step `step` of process `pid` ended at `time_s` (monotonic)."""

    pid: int
    step: int
    time_s: float


class Marks:
    """All marks so far, oldest first."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self.all: list[Mark] = []
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # a writer, too: no end of file between trainers
        self._rest = b""

    def __enter__(self) -> Marks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    @property
    def last(self) -> Mark:
        return self.all[-1]

    def of(self, pid: int) -> list[Mark]:
        return [mark for mark in self.all if mark.pid == pid]

    def wait_for(self, wanted: Callable[[Mark], bool], seconds: float) -> Mark | None:
        """Return the next mark that is `wanted`; None if there is none within `seconds`."""
        deadline_s = time.monotonic() + seconds
        while True:
            new = self._read()
            self.all += new
            for mark in new:
                if wanted(mark):
                    return mark
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            select.select([self._fd], [], [], left_s)

    def wait_for_another(self, pid: int, seconds: float) -> Mark | None:
        """Return the next mark from a process other than `pid`."""
        return self.wait_for(lambda mark: mark.pid != pid, seconds)

    def listen(self, seconds: float) -> None:
        """Read what comes within `seconds`."""
        self.wait_for(lambda _: False, seconds)

    def _read(self) -> list[Mark]:
        try:
            self._rest += os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return []
        *lines, self._rest = self._rest.split(b"\n")
        return [Mark(int(pid), int(step), float(time_s)) for pid, step, time_s in map(bytes.split, lines)]
