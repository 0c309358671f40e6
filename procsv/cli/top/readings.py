"""Read the state of a run once a second, and remember the last minutes.

Used by command.py. This module reads files and asks the watchdog; it changes nothing.
"""

from __future__ import annotations

import collections
import contextlib
from typing import Any

import msgspec

from procsv.base.clock import Clock
from procsv.base.identity import TaskId
from procsv.base.journal.entries import CheckpointDurable, Promoted, Spawned
from procsv.base.journal.line import Line, decode_line
from procsv.base.outcome import Loss
from procsv.base.run.run_file import RunFile
from procsv.cli.directory import find_run
from procsv.cli.status import read_status
from procsv.report.event_files import Scalar, Tail, short_name
from procsv.report.losses import VALUES_MAX, Losses

RATE_S = 10.0  # rates are means over this time; with slow steps, shorter times would give spikes
EVENTS_MAX = 200

Saved = tuple[CheckpointDurable, float]  # the newest checkpoint, and its Unix time


class View(msgspec.Struct, frozen=True):
    """What the screen shows."""

    status: dict[str, Any]
    rates: list[Scalar]  # steps per second, one for each reading
    loss_name: str
    losses: list[Scalar]
    starts_s: list[float]  # Unix seconds: when the task was restarted
    saved: Saved | None
    lines: list[Line]  # of the journal, oldest first
    now_s: float  # Unix seconds


class Readings:
    def __init__(self, directory: str, tag: str | None, clock: Clock) -> None:
        """Prepare to read the run in `directory`. `tag`: the scalar to show; None: one like a loss."""
        self._directory, self._clock = directory, clock
        self._steps: collections.deque[tuple[float, int]] = collections.deque()
        self.rates: collections.deque[Scalar] = collections.deque(maxlen=VALUES_MAX)
        self._losses = Losses(tag)
        self._log: Tail | None = None
        self._lines: collections.deque[Line] = collections.deque(maxlen=EVENTS_MAX)
        self._saved: Saved | None = None
        self._journal: Tail | None = None
        self._rest = b""  # the beginning of the journal's unfinished last line

    def take_view(self) -> View:
        run = find_run(self._directory)
        status = read_status(run)
        self.enter_step(status["step"], status["running"])
        self._read_journal(run)
        self._losses.read_files(run.checkpoint_dir)
        if (loss := status.get("loss")) is not None:
            self._losses.enter(msgspec.convert(loss, Loss), self._clock.wall())
        elif not status.get("fit"):
            self._losses.read_output(self._read_log(run), self._clock.wall())
        return View(
            status,
            list(self.rates),
            short_name(self._losses.name),
            self._losses.values,
            [line.time for line in self._lines if _is_restart(line, run)],
            self._saved,
            list(self._lines),
            self._clock.wall(),
        )

    def enter_step(self, step: int, running: bool) -> None:
        now_s, steps = self._clock.monotonic(), self._steps
        if steps and (step < steps[-1][1] or not running):
            steps.clear()  # the program was restarted, and redoes steps: the rate must not be negative
        steps.append((now_s, step))
        while now_s - steps[0][0] > RATE_S and len(steps) > 2:
            steps.popleft()
        (first_s, first), seconds = steps[0], now_s - steps[0][0]
        if seconds > 0 and first >= 0 and running:
            self.rates.append(Scalar("", step, self._clock.wall(), (step - first) / (now_s - first_s)))

    def _read_log(self, run: RunFile) -> bytes:
        """Return what the newest attempt has printed since the last call."""
        path = run.paths.log(TaskId.parse(run.task), run.incarnation)
        with contextlib.suppress(OSError):
            if self._log is None or self._log.path != path:
                self._log = Tail(path)
            return self._log.read_appended()
        return b""

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


def _is_restart(line: Line, run: RunFile) -> bool:
    return isinstance(line.entry, Spawned | Promoted) and line.role == run.task and line.incarnation > 1
