"""A run killed with all its processes resumes from its memory, which another run's launch sweeps
once its logdir is gone.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from procsv.base.run.paths import find_paths
from procsv.base.run.run_file import read_run
from tests.support.launched import Launched, launched
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault

TRAINS = ("tests.support.numpy_training", "1000000", "0.01", "600")  # newer states are only in memory


def kill_all(run: Launched) -> None:
    """Kill all at once, so that none sees another's end."""
    run.kill("watchdog", signal.SIGSTOP)
    started = psutil.Process(run.process.pid).children(recursive=True)
    for process in started:
        process.suspend()
    for process in started:
        process.kill()
    run.kill("watchdog")
    assert run.wait_end() == -signal.SIGKILL
    psutil.wait_procs(started)


def memory_step(logdir: Path) -> int:
    run = read_run(logdir / "procsv" / "run.json")
    return -1 if run is None else run.memory_step


def launch_another(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("")
    with launched(tmp_path / "another", str(tmp_path / "ends.py")) as run:
        assert run.wait_end() == 0, run.said()


@pytest.mark.long
def test_row_84_a_run_whose_processes_were_all_killed_resumes_from_memory_and_leaves_none_without_its_logdir(
    tmp_path: Path,
) -> None:
    logdir, step = tmp_path / "logdir", -1
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(launched(logdir, *TRAINS, cwd=ROOT))
        run.wait_for("a snapshot", lambda: memory_step(logdir) > 0)
        step = memory_step(logdir)
        kill_all(run)
        launch_another(tmp_path)  # it sweeps
        run = stack.enter_context(launched(logdir, *TRAINS, cwd=ROOT))
        recovered = run.wait_event("recovered", 2)[-1]
        assert recovered["source"] == "memory"
        assert recovered["step"] >= step
        run.wait_for("a later snapshot", lambda: memory_step(logdir) > recovered["step"])
        kill_all(run)
    places = find_paths(logdir)
    assert places.run_dir.exists()
    assert list(places.shm_dir.glob("slot.*"))

    shutil.rmtree(logdir)
    launch_another(tmp_path)

    assert not places.run_dir.exists()
    assert not places.shm_dir.exists()
