"""procsv's lines reach the log, and its stops the program, whatever the program has done to its output."""

from __future__ import annotations

import io
import shutil
import sys
import threading
from functools import partial
from pathlib import Path

import psutil
import pytest

from procsv.training.runtime.log import flush_output, say
from tests.support.programs import until
from tests.watchdog.test_main import IDLE, NEWS_S_MAX, launched


class Tee:
    """A stream as programs write it: it cannot be flushed."""

    def write(self, text: str) -> None:
        sys.__stderr__.write(text)  # type: ignore[union-attr]


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [closed(), Tee()], ids=["closed", "without flush"])
def test_a_line_is_printed_once_although_the_program_has_closed_or_replaced_its_output(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, stream)
    say("a line")
    flush_output()
    assert capfd.readouterr().err == "procsv: a line\n"


@pytest.mark.fault
def test_a_program_that_has_closed_its_output_still_learns_that_its_watchdog_is_dead(tmp_path: Path) -> None:
    with launched(tmp_path, f"import sys\nsys.stderr.close()\n{IDLE}", grace_s=1.0) as run:
        left = [psutil.Process(run.begun().pid(role)) for role in ("trainer", "checkpoint", "summary")]
        run.process.kill()
        until(lambda: "watchdog is gone" in run.log(), partial(threading.Event().wait, 0.02))
        assert not psutil.wait_procs(left, NEWS_S_MAX)[1]
        for directory in (run.file().paths.run_dir, run.file().paths.shm_dir):  # the stand-in leaves them
            shutil.rmtree(directory)
