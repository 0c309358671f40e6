"""`procsv top` shows one run on one screen, on a terminal and off it."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from procsv.base.identity import CHECKPOINT, TRAINER
from procsv.base.journal.file import Journal
from procsv.base.system.system_clock import SystemClock
from procsv.cli.top.readings import Readings
from procsv.cli.top.screen import BARS, MARK, _Curve, _state_style, draw_screen, sparkline
from procsv.report.event_files import Scalar
from procsv.services.summary.event_file import frame
from tests.cli.test_commands import ROOT, a_run, procsv
from tests.support.fake_clock import FakeClock
from tests.support.journal import append
from tests.watchdog.test_main import IDLE, launched


def scalar(value: float, tag: str = "loss") -> bytes:
    event = Event(wall_time=1.0, step=1, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))
    data: bytes = event.SerializeToString()
    return data


def lines_of(directory: Path, width: int, height: int | None) -> list[str]:
    view = Readings(str(directory), None, FakeClock()).take_view()
    text = io.StringIO()
    Console(file=text, width=width, highlight=False).print(draw_screen(view, width, height, "q quits"))
    return text.getvalue().splitlines()


# -- on a terminal ---------------------------------------------------------------------------------------------
@pytest.mark.fault
def test_the_screen_shows_events_as_they_happen_and_q_restores_the_terminal(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE) as run:
        run.begun()
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        before = termios.tcgetattr(theirs)
        top = subprocess.Popen(
            [sys.executable, "-m", "procsv.cli.main", "top", str(run.logdir)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.STDOUT,
        )
        seen = bytearray()

        def shows(*words: str) -> bool:
            if select.select([ours], [], [], 0.02)[0]:
                seen.extend(os.read(ours, 2**16))
            return all(word.encode() in seen for word in words)

        run.until("the first screen", lambda: shows("trainer", str(run.pid("trainer")), "checkpoint", "q quits"))
        assert b"service_restarted" not in seen
        os.kill(run.pid("summary"), 9)
        run.until("the event", lambda: shows("service_restarted"))
        os.write(ours, b"q")
        run.until("the end of top", lambda: shows() and top.poll() is not None)
        shows()
        assert top.returncode == 0, seen.decode()
        assert termios.tcgetattr(theirs) == before
        assert seen.count(b"\x1b[?1049h") == seen.count(b"\x1b[?1049l") == 1, "the screen before comes back"
        os.close(ours)
        os.close(theirs)
        run.process.terminate()
        run.end()


def test_without_a_terminal_it_prints_one_screen_with_all_events_and_exits(tmp_path: Path) -> None:
    run = a_run(tmp_path / "l", restarts=2)
    journal = Journal(run.paths.journal, SystemClock())
    for step in range(50):
        append(
            journal, "checkpoint_durable", CHECKPOINT, 1, step=step, path="p", reason="periodic", bytes=1, seconds=0.1
        )
    append(journal, "exited", TRAINER, 3, signal="\x1b]0;title\x07", cause="killed", step=49)
    append(journal, "exited", CHECKPOINT, 1, code=0, cause="completed", step=-1)
    journal.close()
    done = procsv("top", str(tmp_path / "l"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("checkpoint_durable") == 50
    assert "restarts 2" in done.stdout
    assert "step -1" not in done.stdout
    assert "\x1b" not in done.stdout
    assert "\\x1b" in done.stdout, "what an event holds is shown, not obeyed"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50), (40, 24)])
def test_the_screen_fits_into_the_terminal(tmp_path: Path, width: int, height: int) -> None:
    run = a_run(tmp_path / "l", args=("--name", "x" * 200), save_error="disk is full " * 20)
    journal = Journal(run.paths.journal, SystemClock())
    for step in range(60):
        append(journal, "checkpoint_durable", CHECKPOINT, 1, step=step, path="p", reason="periodic", evidence="e" * 300)
    journal.close()
    lines = lines_of(tmp_path / "l", width, height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    assert re.search(r"step 59\b", lines[-2]) or width < 80, "the newest event is the last"
    assert lines[-1].endswith("q quits")


# -- figures ---------------------------------------------------------------------------------------------------
def test_a_sparkline_spans_the_lowest_to_the_highest_value() -> None:
    assert sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 1, 0.0, 7.0) == [BARS]
    assert sparkline([5.0, 5.0], 1, 0.0, 5.0) == [BARS[-1] * 2]
    assert sparkline([0.0, 7.0, None, 15.0], 2, 0.0, 15.0) == [f"  {MARK}█", f"▁█{MARK}█"]
    assert sparkline([3.0], 1, 3.0, 3.0) != [BARS[0]] == sparkline([0.0], 1, 0.0, 0.0)


def test_a_curve_shows_all_points_in_its_columns_and_a_mark_before_each_start() -> None:
    points = [Scalar("loss", step, float(step), 10.0 - step) for step in range(1, 7)]
    curve = _Curve(points, starts_s := [4.5, 2.5, 0.5, 9.0], 8)
    assert curve.columns == [9.0, 8.0, None, 7.0, 6.0, None, 5.0, 4.0]
    assert (curve.low, curve.high) == (4.0, 9.0)
    curve = _Curve(points, starts_s, 5)
    assert curve.columns == [8.5, None, 6.5, None, 4.5], "each is the mean of two"
    assert (curve.low, curve.high) == (4.5, 8.5)
    assert _Curve(points, starts_s, 4).columns == [6.5, None, 4.5], "the oldest have no room"
    assert _Curve(points, [], 4).columns == [8.5, 6.5, 4.5]
    assert _Curve([], [], 4).columns == []


def test_a_large_terminal_shows_charts_with_a_scale_and_uses_every_line(tmp_path: Path) -> None:
    run = a_run(tmp_path / "l", steps_total=1000)
    (tmp_path / "l" / "events.out.tfevents.1.host").write_bytes(frame(scalar(2.25)) + frame(scalar(0.5)))
    journal = Journal(run.paths.journal, SystemClock())
    for step in range(60):
        append(journal, "checkpoint_durable", CHECKPOINT, 1, step=step, path="p", reason="periodic")
    journal.close()
    small, large = lines_of(tmp_path / "l", 80, 24), lines_of(tmp_path / "l", 160, 50)
    assert "840 of 1000" in small[2] == large[2]
    assert "█" in small[3], "beside the figure"
    assert small[3].endswith("0.5 to 2.25")
    scale = [line.split()[0] for line in large if "█" in line]
    assert (scale[0], scale[-1]) == ("2.25", "0.5")
    assert len(scale) > 4
    assert all(line.strip() for line in large[-20:]), "the events take what is left"


def test_steps_repeated_after_a_restart_are_not_steps_backwards(tmp_path: Path) -> None:
    clock = FakeClock()
    readings = Readings("", None, clock)
    for step in (100, 110, 120, 90, 100):
        readings.enter_step(step, running=True)
        clock.advance(1.0)
    assert [one.value for one in readings.rates] == [10.0, 10.0, 10.0]


@pytest.mark.parametrize(
    ("running", "state", "style"),
    [
        (True, "running", "green"),
        (False, "done", "green"),
        (False, "stopped", ""),
        (False, "failed", "red"),
        (False, "running", "red"),
    ],
)
def test_only_a_run_that_did_not_end_well_is_red(running: bool, state: str, style: str) -> None:
    assert _state_style({"running": running, "state": state}) == style
