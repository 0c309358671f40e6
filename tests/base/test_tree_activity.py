"""A process tree's activity changes only when one of its threads runs."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from procsv.base.system.process_state import tree_activity

CHILD = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
PROGRAM = f"""
import subprocess, sys, threading, time
from procsv.base.system.process_state import name_own_thread

def ticks():
    name_own_thread()
    while True:
        time.sleep(0.001)
        print("tick", file=sys.stderr, flush=True)

threading.Thread(target=ticks, daemon=True).start()
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}])  # it has our input and output
child.wait()
"""


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()  # this ends the child and its parent
            process.kill()


def settle(process: subprocess.Popen[str]) -> int:
    """Return the activity once it no longer changes while our own thread runs."""
    pause = threading.Event()
    for _ in range(10_000):
        before = tree_activity(process.pid)
        pause.wait(0.01)
        _tick(process)
        if before is not None and before == tree_activity(process.pid):
            return before
    raise AssertionError("it never stands still")


def _tick(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    assert process.stderr.readline() == "tick\n"


def test_a_waiting_tree_shows_no_activity_and_a_child_that_runs_once_is_seen(program: subprocess.Popen[str]) -> None:
    assert program.stdin is not None
    assert program.stdout is not None
    for _ in range(3):
        program.stdin.write("run\n")
        program.stdin.flush()
        assert program.stdout.readline() == "run\n"
        still = settle(program)
        program.stdin.write("run\n")
        program.stdin.flush()
        assert program.stdout.readline() == "run\n"
        assert tree_activity(program.pid) != still


def test_a_missing_process_has_no_activity() -> None:
    assert tree_activity(2**22 + 1) is None
