"""A launch's terminal shows the program's output without noise, and a few lines of the watchdog."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING

import pytest

from procsv import __version__
from tests.support.launched import NOT_SAVED, settings_text
from tests.support.screen import TerminalInMemory
from tests.watchdog.test_main import LAUNCH, NEWS_S_MAX, ROOT, launched

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.fault

NOISE = "I0000 00:00:1795351587.124464    3412 cudart_stub.cc:31] Could not find cuda drivers on your machine"
NOISY = f"import sys\nprint('{NOISE}', file=sys.stderr)\nprint('1 of 3')\nsys.exit(78)"


def test_start_up_noise_is_in_the_log_file_but_not_in_the_echo_or_the_crash_report(tmp_path: Path) -> None:
    with launched(tmp_path, NOISY) as run:
        assert run.end() == 70
        assert NOISE in run.log()
        assert "1 of 3" in run.said()
        assert NOISE not in run.said()
        for report in ("1.txt", "1.json"):
            text = (run.logdir / "procsv" / "crashes" / report).read_text()
            assert "1 of 3" in text
            assert "cudart_stub" not in text


def test_a_launch_shows_its_version_directory_start_and_how_to_watch_it(tmp_path: Path) -> None:
    with launched(tmp_path, "print('hello')") as run:
        assert run.end() == 0
        version, beginning, watching, *_ = run.said().splitlines()
    assert version == f"procsv: version {__version__}; run directory {run.logdir}"
    assert "nothing is saved" in beginning
    assert f"procsv top {run.logdir}" in watching


def test_our_own_error_is_shown_once_and_without_a_traceback(tmp_path: Path) -> None:
    source = "from procsv.base.errors import UserError\nraise UserError('the logdir is /a, and must be /b')"
    with launched(tmp_path, source) as run:
        assert run.end() == 70
        assert run.said().count("the logdir is /a, and must be /b") == 1
        assert "Traceback" not in run.said()
        assert "the error above" in run.said()
        assert "/b" in run.journal("exited", "trainer")[0]["evidence"]


CAREFUL = """
import time
print("begun", flush=True)
try:
    while True:
        time.sleep(3600)
finally:
    print("cleaned up", flush=True)
"""
STUBBORN = (
    "import signal\nsignal.signal(signal.SIGINT, lambda *_: print('no', flush=True))\nprint('begun', flush=True)\n"
    + ("while True: signal.pause()")
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_without_a_session_ends_at_once_and_in_order_when_it_is_stopped(tmp_path: Path, number: int) -> None:
    with launched(tmp_path, CAREFUL, grace_s=36_000.0) as run:  # a test that waited for the grace period would not end
        run.begun()
        run.process.send_signal(number)
        assert run.end() in NOT_SAVED
        assert "cleaned up" in run.said()
        assert "Traceback" not in run.said()
        assert "no session yet" in run.said()
        assert run.journal("exited", "trainer")[0]["cause"] == "stopped"
        assert not (run.logdir / "procsv" / "crashes").exists()


def test_a_run_that_does_not_end_at_the_first_ctrl_c_ends_at_the_second_as_the_first_one_announces(
    tmp_path: Path,
) -> None:
    with launched(tmp_path, STUBBORN, grace_s=36_000.0) as run:
        run.begun()
        run.process.send_signal(signal.SIGINT)
        run.until("the first", lambda: "; Ctrl-C again " in run.said() and "no" in run.log().split())
        run.process.send_signal(signal.SIGINT)
        assert run.end() in NOT_SAVED
        assert run.said().count("Ctrl-C: ") == 2


BAR = """
import signal, sys
for percent in range(0, 101, 10):
    print(f"\\r{percent:3d}% [{'#' * percent}]", end="", flush=True)
try:
    signal.pause()
finally:
    print("\\nleft")
"""


class Watched:
    """`procsv launch` on a terminal of `columns` columns."""

    def __init__(self, tmp_path: Path, source: str, columns: int) -> None:
        (tmp_path / "train.py").write_text(source)
        self.terminal, self.said = TerminalInMemory(columns), b""
        self._fd, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (24, columns))
        argv = [sys.executable, str(LAUNCH), str(tmp_path / "logdir"), settings_text(), str(tmp_path / "train.py")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self.shown = ""

    def local_flags(self) -> int:
        """Return the terminal's local flags: echo and so on."""
        return int(termios.tcgetattr(self._fd)[3])

    def press(self, keys: bytes) -> None:
        self.shown = self.terminal.rows[-1]
        os.write(self._fd, keys)

    def until(self, what: str, holds: Callable[[list[str]], bool]) -> list[str]:
        """Return the rows once `is_so`, or all of them for "the end"."""
        until_s = time.monotonic() + NEWS_S_MAX  # the line is drawn each second: there is always something to read
        while not holds(self.terminal.rows):
            assert time.monotonic() < until_s, f"no {what}: {self.terminal.rows}"
            assert select.select([self._fd], [], [], NEWS_S_MAX)[0], f"no {what}: {self.terminal.rows}"
            try:
                data = os.read(self._fd, 65536)
            except OSError:  # the other end is closed
                assert what == "the end", f"ended before {what}: {self.terminal.rows}"
                break
            self.said += data
            self.terminal.feed(data)
        return self.terminal.rows

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)


@pytest.mark.parametrize("columns", [80, 160])
def test_on_a_terminal_a_status_line_is_below_a_progress_bar_and_goes_with_the_run(
    tmp_path: Path, columns: int
) -> None:
    watched = Watched(tmp_path, BAR, columns)
    try:
        rows = watched.until("bar and line", lambda rows: len(rows) > 1 and "100%" in rows[-2] and rows[-1][:1] == "▸")
        assert sum("% [" in row for row in rows) == 1, "a bar that redraws is one row"
        assert all(len(row) < columns for row in rows[-2:]), "what wraps could not be erased"
        watched.until("state", lambda rows: rows[-1].startswith("▸ running, "))
        watched.process.send_signal(signal.SIGINT)
        rows = watched.until("the end", lambda rows: False)
        assert watched.process.wait(NEWS_S_MAX) in NOT_SAVED
        assert not any("▸" in row for row in rows)
        assert f"100% [{'#' * 100}]" in "".join(rows), "a line that has ended is whole"
        assert "left" in rows
        assert rows[-1] == ""
        assert any(row.startswith("procsv: stopped") for row in rows[-3:-1]), "the last line, which may take two rows"
    finally:
        watched.close()


def test_a_key_typed_on_a_live_terminal_leaves_nothing_behind_and_the_terminal_is_restored(
    tmp_path: Path,
) -> None:
    watched = Watched(tmp_path, BAR, 80)
    try:
        before = watched.local_flags()
        watched.until("line", lambda rows: rows[-1].startswith("▸ running, "))
        watched.press(b"xyz\n\n")
        watched.until("a later line", lambda rows: rows[-1].startswith("▸ running, ") and rows[-1] != watched.shown)
        assert sum("▸" in row for row in watched.terminal.rows) == 1
        assert "xyz" not in "".join(watched.terminal.rows)
        watched.process.send_signal(signal.SIGINT)
        watched.process.wait(NEWS_S_MAX)
        assert watched.local_flags() == before
    finally:
        watched.close()


def test_without_a_terminal_there_is_no_status_line(tmp_path: Path) -> None:
    with launched(tmp_path, BAR) as run:
        run.until("the bar", lambda: "100%" in run.said())
        run.process.send_signal(signal.SIGINT)
        assert run.end() in NOT_SAVED
        assert b"\r 50% [" in (tmp_path / "output").read_bytes(), "byte for byte what the program has printed"
        assert "▸" not in run.said()
        assert "\x1b" not in run.said()
