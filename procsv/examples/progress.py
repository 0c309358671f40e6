"""Show in one line how far a training loop is.

The examples call this after every step. On a terminal the line is rewritten in place; anywhere else
(a pipe, a log file) a new line appears every LINE_S seconds. It never prints the same step twice,
and most calls only read the clock and return.
"""

from __future__ import annotations

import sys
import time

REWRITE_S = 0.1  # on a terminal: often enough to look alive
LINE_S = 2.0  # in a log: a day of training stays below 50,000 lines


class Progress:
    """Shows `step N/M`, the caller's text, and the speed since this process began to train."""

    def __init__(self, first_step: int, last_step: int) -> None:
        self._first_step = first_step
        self._last_step = last_step
        self._rewrites = sys.stdout.isatty()
        self._begin_s = time.monotonic()
        self._next_s = self._begin_s + (REWRITE_S if self._rewrites else LINE_S)
        self._width = 0

    def steps_per_s(self, step: int) -> float:
        return (step - self._first_step) / max(time.monotonic() - self._begin_s, 1e-9)

    def show(self, step: int, text: str = "") -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        line = f"step {step}/{self._last_step}  {text}{'  ' if text else ''}{self.steps_per_s(step):.1f} steps/s"
        if self._rewrites:
            print(f"\r{line:<{self._width}}", end="", flush=True)
            self._width = len(line)
            self._next_s = now_s + REWRITE_S
        else:
            print(line, flush=True)
            self._next_s = now_s + LINE_S

    def end_line(self) -> None:
        """Leave the terminal on a fresh line."""
        if self._width:
            print(flush=True)
            self._width = 0
