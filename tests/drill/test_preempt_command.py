"""`procsv preempt` preempts a live run as a platform does and reports what that cost.

tests/faults/test_row_38_preemption_profiles.py has every profile at every moment.
"""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from procsv.testing import Launch
from tests.support.launched import procsv
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault


def _preempt(logdir: Path, *options: str, code: int) -> dict[str, Any]:
    done: subprocess.CompletedProcess[str] = procsv("preempt", str(logdir), "--json", *options)
    assert done.returncode == code, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


STUBBORN = """
import time
from tests.support.numpy_training import training

with training() as model:
    while True:
        model.train()
        time.sleep(0.01)
"""


def test_a_process_that_outlives_the_grace_period_is_killed_and_its_memory_is_gone(
    procsv_launch: Launch, tmp_path: Path
) -> None:
    program = tmp_path / "stubborn.py"
    program.write_text(STUBBORN)
    run = procsv_launch(str(program), options=["--grace", "60s", "--standby", "off"], PYTHONPATH=str(ROOT))
    run.wait_step(5)
    os.kill(run.pid("trainer"), signal.SIGSTOP)  # a stopped trainer misses the notice, and the grace period passes
    said = _preempt(run.logdir, "--profile", "k8s", "--grace", "0.2s", code=1)
    assert not said["in_time"]
    assert said["lost_steps"] >= 5
    assert {"trainer", "watchdog"} <= set(said["killed"])
    assert run.wait_end() == -signal.SIGKILL
    assert not any(path.name.startswith("procsv-") for path in Path(os.environ["XDG_RUNTIME_DIR"]).iterdir())


def test_a_run_that_is_not_running_cannot_be_preempted(tmp_path: Path) -> None:
    done = procsv("preempt", str(tmp_path))
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
