"""Launches that hold a run's keys cannot be inspected by other processes, and can still be stopped
and restarted.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launched import NOT_SAVED, PYTHONPATH
from tests.support.machines import machines
from tests.support.ordinary_rights import LOOKS_AT_OWN
from tests.support.within import go_within


def ask(*command: str) -> int:
    """Return the exit code of a process without root's right to inspect others."""
    return subprocess.run(go_within(LOOKS_AT_OWN, command), env=PYTHONPATH, timeout=60, check=False).returncode


@pytest.mark.long
def test_only_root_looks_into_launches_of_several_machines_and_their_owner_stops_them(tmp_path: Path) -> None:
    looks = "import os; os.readlink('/proc/{}/cwd')"
    with machines(tmp_path, ["chief", "worker.0"], "--peer-timeout", "15") as run:
        chief, worker = (run.launch(task, within=LOOKS_AT_OWN) for task in ("chief", "worker.0"))
        chief.wait_event("spawned", 1, "worker.0")
        programs = [chief.events("spawned", task)[0]["pid"] for task in ("chief", "worker.0")]
        pids = (chief.process.pid, worker.process.pid, *programs)
        assert [ask(sys.executable, "-c", looks.format(pid)) for pid in pids] == [1, 1, 0, 0]

        chief.process.send_signal(signal.SIGKILL)
        chief.process.wait()
        again = run.launch("chief", within=LOOKS_AT_OWN)
        again.wait_event("adopted", 1, "worker.0")
        ask(sys.executable, "-m", "procsv", "stop", str(run.logdir))
        assert again.wait_end() == worker.wait_end()
        assert again.wait_end() in NOT_SAVED
