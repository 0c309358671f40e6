"""Track the loss of a run as it trains.

The loss comes from the run's event files. If they have no loss, it comes from what the program
prints.

Used by `procsv top`, `procsv ls` and the watchdog's console, so this module imports nothing large.
It reads the end of a file and then only what is appended. It changes nothing.
"""

from __future__ import annotations

import collections
import contextlib
import math
import re
from pathlib import Path
from typing import NamedTuple

from procsv.base.outcome import NO_STEP, Loss
from procsv.report.event_files import (
    START_BYTES,
    EventFileTail,
    Scalar,
    find_loss,
    newest_event_files,
    read_scalars,
    short_name,
)

FILES_MAX = 4  # how many event files are followed at a time; the newest
VALUES_MAX = 600
LATE_S = 1.5  # how far the step in the heartbeat may lag behind the program's output

_LOSS = re.compile(rb"\bloss\b[^\w\n]{1,3}([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)", re.IGNORECASE)
# A step, alone or followed by the last one: `global_step = 100`, `step 78/2000`.
_STEP = re.compile(
    rb"(?:\b|_)step[:=\s]{1,3}(\d[\d,]{0,18})(?![\d.])(?:\s*(?:/|of\b)\s*(\d[\d,]{0,18})(?![\d.]))?", re.IGNORECASE
)
_SCRAP_BYTES_MAX = 1000  # most bytes kept of an unfinished line


class Printed(NamedTuple):
    """What one printed line says about the training."""

    time_s: float
    step: int
    last_step: int  # at which training ends; NO_STEP if the line does not say
    loss: float | None


class Losses:
    """The latest values of one scalar.

    The scalar is `tag`, or, without a tag, the scalar that looks most like the loss.
    """

    def __init__(self, tag: str | None = None, since_s: float = 0.0, start: int = START_BYTES) -> None:
        """`since_s`: ignore event-file values older than this, in Unix seconds. `start`: how many
        bytes of the end of each file to read first.
        """
        self._tag, self._since_s, self._start = tag, since_s, start
        self._scalars: dict[str, collections.deque[Scalar]] = {}
        self._files: dict[Path, EventFileTail] = {}
        self._scrap = b""
        # Whether the output mentions epochs. Then M in `step N/M` may be the steps of one epoch, not of the training.
        self._in_epochs = False
        self._lines: collections.deque[Printed] = collections.deque(maxlen=VALUES_MAX)
        self._printed: collections.deque[Scalar] = collections.deque(maxlen=VALUES_MAX)

    @property
    def name(self) -> str:
        """Return the scalar's tag, after the name of its file's directory if that is not the logdir."""
        if self._tag is None:
            return find_loss(self._scalars) or "loss"
        return next((name for name in self._scalars if name.rpartition(": ")[2] == self._tag), self._tag)

    @property
    def values(self) -> list[Scalar]:
        """Return the values from event files, oldest first.

        If there are none and no tag was given, return the losses that the program printed.
        """
        return self.scalars or (list(self._printed) if self._tag is None else [])

    @property
    def scalars(self) -> list[Scalar]:
        """Return the values from event files only."""
        return list(self._scalars.get(self.name, ()))

    def read_files(self, logdir: Path) -> None:
        """Read what was added to event files since the last call."""
        for path in newest_event_files(logdir, FILES_MAX):
            with contextlib.suppress(OSError):
                if path not in self._files:
                    self._files[path] = EventFileTail(path, self._start)
                where = "" if path.parent == logdir else f"{path.parent.name}: "
                for scalar in (one for record in self._files[path].records() for one in read_scalars(record)):
                    if scalar.time_s >= self._since_s:
                        values = self._scalars.setdefault(where + scalar.tag, collections.deque(maxlen=VALUES_MAX))
                        values.append(scalar)

    def read_output(self, data: bytes, now_s: float) -> None:
        """Read the next piece of the program's output."""
        *lines, self._scrap = (self._scrap + data).replace(b"\r", b"\n").split(b"\n")
        self._scrap = self._scrap[-_SCRAP_BYTES_MAX:]
        for line in lines:
            loss, step = _LOSS.search(line), _STEP.search(line)
            self._in_epochs = self._in_epochs or b"epoch" in line.lower()
            value = None if loss is None or not math.isfinite(float(loss[1])) else float(loss[1])
            if step is not None:
                last_step = NO_STEP if self._in_epochs else _count(step[2])
                self._lines.append(Printed(now_s, _count(step[1]), last_step, value))
            if value is not None:
                self._printed.append(Scalar("loss", NO_STEP if step is None else _count(step[1]), now_s, value))

    def enter(self, loss: Loss, now_s: float) -> None:
        """Enter the loss that a fit reports, once per step, instead of the loss that it prints."""
        if not self._printed or self._printed[-1].step != loss.step:
            self._printed.append(Scalar(loss.name, loss.step, now_s, loss.value))

    def forget(self) -> None:
        """Forget all values, because the program was restarted and redoes their steps."""
        self._scalars.clear()
        self._lines.clear()
        self._printed.clear()

    def take_lines(self) -> list[Printed]:
        """Return the lines since the last call that name a step."""
        lines = list(self._lines)
        self._lines.clear()
        return lines


def _plain(name: str) -> str:
    """Return the short form of a tag, or "loss" if that is not safe on one line of a terminal.

    A tag may hold any characters, and wide characters take two columns.
    """
    short = short_name(name)
    return short if short.isascii() and short.isprintable() else "loss"


def _count(digits: bytes | None) -> int:
    return int(digits.replace(b",", b"")) if digits else NO_STEP


class Told(NamedTuple):
    """What the program itself reports about its training."""

    loss: Loss | None = None
    last_step: int = NO_STEP


class LossNow:
    """The newest loss and the last step of one attempt, if they agree with the attempt's heartbeat.

    A printed line may count anything, such as the steps of an epoch or of an evaluation. So a line
    counts only if its step lies between the step in the heartbeat shortly before the line, and the
    step shortly after it. A scalar counts if its step belongs to this attempt.
    """

    def __init__(self, losses: Losses) -> None:
        self.losses = losses
        self._seen: collections.deque[tuple[float, int]] = collections.deque()
        self._first: int | None = None
        self._waiting: list[Printed] = []  # lines with a step that the heartbeat has not reached yet
        self._said: Loss | None = None
        self._last_step = NO_STEP

    def look(self, step: int, now_s: float) -> Told:
        """Return the newest loss and the last step, given the program's current `step`."""
        if step < 0:
            return Told()
        if self._seen and step < self._seen[-1][1]:
            self.losses.forget()
            self._seen.clear()
            self._first = self._said = None
        self._first = step if self._first is None else self._first
        self._seen.append((now_s, step))
        while now_s - self._seen[0][0] > 2 * LATE_S:
            self._seen.popleft()
        lines, self._waiting = self._waiting + self.losses.take_lines(), []
        for line in lines:
            if line.step > step and now_s - line.time_s < LATE_S:
                self._waiting.append(line)
            elif self._seen[0][1] <= line.step <= step:
                self._last_step = line.last_step
                if line.loss is not None:
                    self._said = Loss("loss", line.step, line.loss)
        newest = next((one for one in reversed(self.losses.scalars) if self._first <= one.step <= step), None)
        loss = self._said if newest is None else Loss(_plain(self.losses.name), newest.step, newest.value)
        return Told(loss, self._last_step if self._last_step >= step else NO_STEP)
