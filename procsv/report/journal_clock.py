"""Clock of a journal: its lines have the time of day alone, which may be set back while the run goes on.

Used by book.py.  Pure.  A clock that is set back is taken as no time at all, so that no span is negative; one that is set forward
cannot be told from time.
"""

from __future__ import annotations


class JournalClock:
    """Unix seconds, corrected."""

    def __init__(self) -> None:
        self.time_s = self.heard_s = 0.0  # of the last line, and of the one before it
        self.set_back_s = 0.0  # by how much the clock was set back until now

    def read(self, time_s: float) -> float:
        """The corrected time of the next line."""
        self.heard_s = self.time_s
        if time_s + self.set_back_s < self.time_s:
            self.set_back_s = self.time_s - time_s
        self.time_s = time_s + self.set_back_s
        return self.time_s
