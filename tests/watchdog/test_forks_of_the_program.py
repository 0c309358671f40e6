"""What a fork of the program does on its way out is not taken for the program's own end."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.watchdog.test_main import IDLE, launched

pytestmark = pytest.mark.fault

RAISES = """
import os
if os.fork() == 0:
    raise RuntimeError("said by the fork")
os.wait()
os._exit(3)
"""
# The fork runs to the end of the program, and its exit function kills the program.
RETURNS = """
import atexit, os, signal, sys, time
from pathlib import Path
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.runtime.context import current
if os.environ["PROCSV_INCARNATION"] == "1":
    current().heartbeat.enter_phase(Phase.RESTORE)  # a session is being opened
    print("begun", flush=True)
    while not Path(sys.argv[1]).exists():
        time.sleep(0.01)
    program = os.getpid()
    if os.fork() == 0:
        while Path(f"/proc/{program}/stat").read_text().rpartition(") ")[2][0] != "T":
            time.sleep(0.01)
        atexit.register(os.kill, program, signal.SIGKILL)
        sys.exit(0)
    os.kill(program, signal.SIGSTOP)  # so that it writes no heartbeat any more
"""


def test_an_exception_in_a_fork_does_not_explain_the_programs_end(tmp_path: Path) -> None:
    with launched(tmp_path, RAISES, early_failures=1) as run:
        assert run.end() == 70
        assert "said by the fork" in run.said()
        crash = json.loads((run.logdir / "procsv" / "crashes" / "1.json").read_text())
        assert (crash["cause"], crash["evidence"], crash["exception"]) == ("exit-code", "exit code 3", "")


def test_a_program_is_not_complete_because_a_fork_has_run_to_its_end(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with launched(tmp_path, RETURNS + IDLE, args=(str(go),)) as run:
        run.begun()
        run.until("its session", lambda: run.file().state == "restoring")
        go.touch()
        run.begun(2)
        assert not run.journal("run_completed")
        run.process.send_signal(signal.SIGTERM)
        run.end()
