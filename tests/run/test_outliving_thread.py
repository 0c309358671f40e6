"""A program's training may outlive its main module, on a thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launched import launched
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault

PROGRAM = """
import threading, time


def main():
    threading.main_thread().join()
    from tests.support.numpy_training import training  # imports and starts threads after the main module has ended
    with training() as model:
        while model.step < 60 and not model.should_stop():
            model.train()
            time.sleep(0.01)


threading.Thread(target=main).start()
"""


def test_a_program_that_trains_on_a_thread_after_its_main_module_has_ended_survives_a_kill(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    with launched(tmp_path / "logdir", "train.py", cwd=tmp_path, standby=None, PYTHONPATH=str(ROOT)) as run:
        run.wait_event("recovered")
        run.kill("trainer")
        assert run.wait_end() == 0
    assert [entry["cause"] for entry in run.events("exited", "trainer")] == ["killed", "completed"]
    assert run.events("run_completed")[0]["step"] == 60
