"""What a person sees of a launch: the program's output without noise, and the watchdog's own few lines."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from procsv import __version__
from tests.watchdog.test_main import launched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.fault

NOISE = "I0000 00:00:1795351587.124464    3412 cudart_stub.cc:31] Could not find cuda drivers on your machine"
NOISY = f"import sys\nprint('{NOISE}', file=sys.stderr)\nprint('1 of 3')\nsys.exit(78)"


def test_start_up_noise_is_in_the_log_file_and_neither_in_the_echo_nor_in_the_crash_report(tmp_path: Path) -> None:
    with launched(tmp_path, NOISY) as run:
        assert run.end() == 70
        assert NOISE in run.log()
        assert "1 of 3" in run.said()
        assert NOISE not in run.said()
        for report in ("1.txt", "1.json"):
            text = (run.logdir / "procsv" / "crashes" / report).read_text()
            assert "1 of 3" in text
            assert "cudart_stub" not in text


def test_a_launch_begins_with_its_version_its_directory_where_it_starts_and_how_to_watch_it(tmp_path: Path) -> None:
    with launched(tmp_path, "print('hello')") as run:
        assert run.end() == 0
        version, beginning, watching, *_ = run.said().splitlines()
    assert version == f"procsv: version {__version__}; run directory {run.logdir}"
    assert beginning == "procsv: nothing is saved there yet: the program starts from the beginning"
    assert f"procsv status {run.logdir}" in watching


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
    with launched(tmp_path, CAREFUL, grace_s=36_000.0) as run:  # a test that waits for the grace does not end
        run.begun()
        run.process.send_signal(number)
        assert run.end() == 75
        assert "cleaned up" in run.said()
        assert "Traceback" not in run.said()
        assert "ending the program, which has no session yet and nothing to save" in run.said()
        assert run.journal("exited", "trainer")[0]["cause"] == "stopped"
        assert not (run.logdir / "procsv" / "crashes").exists()


def test_what_does_not_end_at_the_first_ctrl_c_ends_at_the_second_as_the_first_one_says(tmp_path: Path) -> None:
    with launched(tmp_path, STUBBORN, grace_s=36_000.0) as run:
        run.begun()
        run.process.send_signal(signal.SIGINT)
        run.until("the first", lambda: "nothing to save; again: now" in run.said() and "no" in run.log().split())
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 75
        assert "Ctrl-C: ending the program now" in run.said()
