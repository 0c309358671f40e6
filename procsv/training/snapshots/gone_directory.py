"""The directory of a program's checkpoints that somebody has removed, where the program ends.

Used by training_run.py.  As long as the program trains its saves are tried again and again: a filesystem may come back, or the user
may put the directory back.  At the end of a program without `procsv launch` somebody waits for the process to end.
"""

from __future__ import annotations

from pathlib import Path

from procsv.base.clock import Clock

GONE_S_MAX = 5.0  # how long the end waits for the directory to come back


class GoneDirectory:
    """Whether `directory` has been gone for too long; None: nobody waits for the end, and it is never given up."""

    def __init__(self, directory: Path | None, clock: Clock) -> None:
        self.directory, self._clock = directory, clock
        self._since_s: float | None = None  # when it was first seen to be gone

    def is_given_up(self) -> bool:
        if self.directory is None or self.directory.is_dir():
            self._since_s = None
            return False
        now_s = self._clock.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= GONE_S_MAX
