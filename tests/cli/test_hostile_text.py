"""Hostile text in arguments, exceptions and logs is shown as text, and no terminal obeys it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from procsv.base.identity import TRAINER
from procsv.base.outcome import LastExit
from procsv.watchdog.edge.console import Console
from tests.cli.test_commands import ROOT, a_run, procsv

TITLE = "\x1b]0;owned\x07"
SHOWN = r"\x1b]0;owned\x07"
MARKUP = "[/b] /job:localhost/replica:0 [red]"


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """Make the logdir of a run whose every text is hostile."""
    text = f"{MARKUP}{TITLE}"
    ended = LastExit(code=1, signal=None, cause="exception", evidence=f"ValueError: {text}", step=3)
    run = a_run(tmp_path / "l", target=f"train{text}.py", args=(f"--tag={text}",), last_exit=ended, save_error=text)
    run.paths.logs.mkdir()
    run.paths.log(TRAINER, 3).write_bytes(b"\x1b[32mgreen\x1b[0m 50%\r51%\n" + text.encode())
    line = '{"time":1.0,"event":"run_started","role":"watchdog","incarnation":1,"target":"TEXT","args":["TEXT"]}\n'
    line += '{"time":2.0,"event":"spawned","role":"trainer","incarnation":1,"pid":7}\n'
    line += '{"time":3.0,"event":"exited","role":"trainer","incarnation":1,"code":1,"signal":null,"cause":"exception",'
    line += '"step":3,"evidence":"TEXT"}\n{"time":4.0,"event":"checkpoint_rejected","path":"TEXT","why":"TEXT","role":'
    line += '"checkpoint","incarnation":1}\n'
    escaped = text.replace("\x1b", "\\u001b").replace("\x07", "\\u0007")
    run.paths.journal.write_text(line.replace("TEXT", escaped))
    return tmp_path / "l"


@pytest.mark.parametrize("command", ["status", "report", "stop", "checkpoints"])
def test_row_42_every_command_shows_hostile_text_as_text(logdir: Path, command: str) -> None:
    done = procsv(command, str(logdir))
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    if command in ("status", "report"):
        assert MARKUP.split()[0] in done.stdout
        assert SHOWN in done.stdout.replace("\n", "")


def on_a_terminal(*command: str) -> bytes:
    """Return what `command` writes to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=ROOT)
    os.close(theirs)
    said = read_terminal(ours)
    assert process.wait(300.0) == 0
    return said


def read_terminal(fd: int) -> bytes:
    said = b""
    try:
        while data := os.read(fd, 65536):
            said += data
    except OSError:  # the other end is closed
        pass
    os.close(fd)
    return said


def test_row_42_logs_on_a_terminal_keep_colours_and_show_title_sequences_as_text(logdir: Path) -> None:
    said = on_a_terminal(sys.executable, "-m", "procsv.cli.main", "logs", str(logdir))
    assert b"\x1b[32mgreen\x1b[0m 50%\r51%" in said
    assert TITLE.encode() not in said
    assert SHOWN.encode() in said


def test_row_42_logs_in_a_pipe_are_the_printed_bytes(logdir: Path) -> None:
    assert TITLE in procsv("logs", str(logdir)).stdout


def test_row_42_launch_shows_an_exceptions_escapes_and_a_trainers_titles_as_text(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    console = Console(out_fd=theirs, err_fd=theirs)
    log = tmp_path / "trainer.1.log"
    log.write_bytes(b"\x1b[1mbold\x1b[0m " + TITLE.encode() + b"\x1b")
    console.follow(log)
    console.say(f"trainer 1 failed: {TITLE}", is_bad=True, traceback=f"Traceback\n\tValueError: {TITLE}\n")
    console.finish()
    os.close(theirs)
    said = read_terminal(ours)
    assert TITLE.encode() not in said
    assert said.count(SHOWN.encode()) == 3
    assert b"\x1b[1mbold\x1b[0m" in said
    assert said.rstrip().endswith(rb"\x1b") or rb"\x07\x1b" in said, "the last, unfinished sequence is shown, too"
