"""A run ends as if undisturbed though its trainer is killed at each of its moments in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launched import launched

pytestmark = pytest.mark.fault

# In the order of a start; each attempt is killed at the next one. Moments around publishing are
# covered in tests/ipc/shm/test_slot_file_crashes.py, where they cost no trainer start.
MOMENTS = (
    "trainer.import@1=kill",
    "trainer.hello@2=kill",
    "trainer.restore@3=kill",
    "trainer.compile@4=kill",
    "trainer.step@5=20*off->kill",
    "trainer.capture@6=1*off->kill",
    "trainer.copy@7=1*off->kill",
    "trainer.save@8=kill",
    "trainer.after_last_step@9=kill",
    "trainer.atexit@10=kill",
)
STEP_S = 0.01
SNAPSHOT_S = 0.2
STEPS = 150

PROGRAM = f"""
import time
import numpy as np
from tests.support.numpy_training import STEP, training

arrays = {{STEP: np.array(0, np.int64), "total": np.array(0, np.int64)}}


def add():
    arrays["total"] += arrays[STEP]
    arrays[STEP] += 1


with training(save_s=1, arrays=arrays) as model:
    while not model.should_stop() and model.step < {STEPS}:
        time.sleep({STEP_S})
        model.pass_step(add)
    print("total", arrays["total"], flush=True)
"""


@pytest.mark.long
def test_row_01_a_trainer_killed_at_each_moment_costs_one_restart_each_and_none_after_its_program_has_ended(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    options = ("--backoff", "0.05s..0.1s", "--max-failures", "20", "--snapshot-secs", str(SNAPSHOT_S))
    program = str(tmp_path / "train.py")
    with launched(tmp_path / "logdir", *options, program, PROCSV_FAILPOINTS=";".join(MOMENTS)) as run:
        for restart in range(1, len(MOMENTS)):  # each has its own deadline
            run.wait_event("restarting", restart)
        assert run.wait_end() == 0
    exits = [entry for entry in run.events("exited") if entry["role"] == "trainer"]
    assert [entry["signal"] for entry in exits] == ["SIGKILL"] * (len(MOMENTS) - 1) + [None]
    assert exits[-1]["code"] == 0, "killed after its end, it is complete"
    restarts = run.events("restarting")
    assert len(restarts) == len(MOMENTS) - 1
    # A snapshot interval, and as much again for the copy and a busy machine, in steps; the first step takes longer.
    assert max(entry["lost_steps"] for entry in restarts) <= 5 * SNAPSHOT_S / STEP_S
    said = (run.logdir / "procsv" / "logs" / f"trainer.{len(MOMENTS)}.log").read_text()
    assert f"total {sum(range(STEPS))}" in said
