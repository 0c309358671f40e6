"""Readings of a run, taken once a second, with what they have been for the last minutes.

Used by command.py.  Reads files and asks the watchdog; changes nothing.
"""

from __future__ import annotations

import collections
import contextlib
from typing import Any

import msgspec

from procsv.base.clock import Clock
from procsv.base.identity import TaskId
from procsv.base.journal.entries import CheckpointDurable
from procsv.base.journal.line import Line, decode_line
from procsv.base.run.run_file import RunFile
from procsv.cli.directory import find_run
from procsv.cli.status import read_status
from procsv.cli.top.losses import VALUES_MAX, Losses
from procsv.report.event_files import Tail

RATE_S = 10.0  # a rate is taken over this time, so that slow steps give a line and no spikes
EVENTS_MAX = 200

Saved = tuple[CheckpointDurable, float]  # the last one, and when: Unix seconds


class View(msgspec.Struct, frozen=True):
    """What the screen shows."""

    status: dict[str, Any]
    rates: list[float]  # steps a second, one for each reading
    loss_name: str
    losses: list[float]
    saved: Saved | None
    lines: list[Line]  # of the journal, oldest first
    now_s: float  # Unix seconds


class Readings:
    def __init__(self, directory: str, tag: str | None, clock: Clock) -> None:
        """UserError if there is no run in `directory`."""
        self._directory, self._clock = directory, clock
        self._steps: collections.deque[tuple[float, int]] = collections.deque()
        self.rates: collections.deque[float] = collections.deque(maxlen=VALUES_MAX)
        self._losses = Losses(tag)
        self._lines: collections.deque[Line] = collections.deque(maxlen=EVENTS_MAX)
        self._saved: Saved | None = None
        self._journal: Tail | None = None
        self._rest = b""

    def take_view(self) -> View:
        run = find_run(self._directory)
        status = read_status(run)
        self.enter_step(status["step"], status["running"])
        self._read_journal(run)
        self._losses.read_losses(run.checkpoint_dir, run.paths.log(TaskId.parse(run.task), run.incarnation))
        return View(
            status,
            list(self.rates),
            self._losses.name,
            self._losses.values,
            self._saved,
            list(self._lines),
            self._clock.wall(),
        )

    def enter_step(self, step: int, running: bool) -> None:
        now_s, steps = self._clock.monotonic(), self._steps
        if steps and (step < steps[-1][1] or not running):
            steps.clear()  # restarted: what is done again is no progress backwards
        steps.append((now_s, step))
        while now_s - steps[0][0] > RATE_S and len(steps) > 2:
            steps.popleft()
        (first_s, first), seconds = steps[0], now_s - steps[0][0]
        if seconds > 0 and first >= 0 and running:
            self.rates.append((step - first) / (now_s - first_s))

    def _read_journal(self, run: RunFile) -> None:
        path = run.paths.journal
        if self._journal is None or self._journal.path != path:
            if not path.exists():
                return
            self._journal = Tail(path)
        lines = (self._rest + self._journal.read_appended()).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError):  # torn or damaged
                self._lines.append(decode_line(line))
                if isinstance(self._lines[-1].entry, CheckpointDurable):
                    self._saved = self._lines[-1].entry, self._lines[-1].time
