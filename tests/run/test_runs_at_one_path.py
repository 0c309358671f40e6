"""Two runs whose logdirs have the same path but are different directories do not disturb each other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from procsv.testing.run import start_launch
from tests.support import own_processes
from tests.support.launched import Launched, launched
from tests.support.own_processes import FIRST_PROCESS, private
from tests.support.programs import ROOT

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(bool(own_processes.why_not()), reason=own_processes.why_not()),
]

TRAINS = ("tests.support.numpy_training", "1000000", "0.01", "600")  # newer states are only in memory
PAUSES = "import signal\nprint('begun', flush=True)\nsignal.pause()\n"


@contextlib.contextmanager
def at(place: Path, directory: Path, *, in_container: bool) -> Iterator[Launched]:
    """Start a run in `place`/run, which all other processes see as `directory`/run."""
    directory.mkdir()
    launcher = private(place, directory, own_processes=in_container)
    process, _ = start_launch(place / "run", ("--standby", "off", *TRAINS), {}, ROOT, launcher)
    run = Launched(directory / "run", process, place / "run.out")
    try:
        yield run
    finally:
        while process.poll() is None:
            watchdog = psutil.Process(process.pid)
            for one in watchdog.children() if in_container else [watchdog]:
                one.send_signal(signal.SIGINT)  # the second one means immediately
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)


def read_run_json(run: Launched) -> dict[str, Any]:
    return dict(json.loads((run.logdir / "procsv" / "run.json").read_text()))


def has_snapshot(run: Launched, beyond: int = 0) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return int(read_run_json(run)["memory_step"]) > beyond
    return False


@pytest.mark.long
@pytest.mark.parametrize("in_container", [False, True], ids=["a private /tmp", "containers that share /dev/shm"])
def test_row_82_two_runs_at_one_path_train_and_recover_side_by_side(tmp_path: Path, in_container: bool) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with at(place, tmp_path / "a", in_container=in_container) as first:
        first.wait_for("a snapshot", lambda: has_snapshot(first))
        with at(place, tmp_path / "b", in_container=in_container) as second:
            second.wait_for("a snapshot", lambda: has_snapshot(second))
            assert first.events("exited") == second.events("exited") == []
            here, there = read_run_json(first), read_run_json(second)
            assert here["logdir"] == there["logdir"] == str(place / "run")
            assert {here["run_dir"], here["shm_dir"]}.isdisjoint({there["run_dir"], there["shm_dir"]})
            step = read_run_json(first)["memory_step"]
            kill_trainer(first)
            recovered = first.wait_event("recovered", 2)[-1]
            assert recovered["source"] == "memory"
            assert recovered["step"] >= step
            second.wait_for("a later snapshot", lambda: has_snapshot(second, there["memory_step"]))
            assert second.events("exited") == []
            assert "removed" not in first.said() + second.said()


@pytest.mark.parametrize("runtime", ["shared", "its own"])
def test_row_82_the_same_directory_is_refused_to_another_container_under_any_path(
    tmp_path: Path, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    with at(here, tmp_path / "a", in_container=True) as first, ExitStack() as stack:
        first.wait_event("spawned", role="trainer")
        if runtime == "its own":
            own = stack.enter_context(TemporaryDirectory(prefix="psv-"))  # short: the path of a socket has its limit
            monkeypatch.setenv("XDG_RUNTIME_DIR", own)
        launcher = private(there, tmp_path / "a", own_processes=True)
        process, output = start_launch(there / "run", ("--standby", "off", *TRAINS), {}, ROOT, launcher)
        assert process.wait(60) == 73
        assert "is in use" in output.read_text()
        assert first.events("exited") == []
        assert len(first.events("run_started")) == 1
        assert runtime == "shared" or not list(Path(own).iterdir())


def kill_trainer(run: Launched) -> None:
    """Kill the trainer found by its command line, since its pid is from another namespace."""
    [trainer] = [
        child
        for child in psutil.Process(run.process.pid).children(recursive=True)
        if {"procsv.training", "trainer"} <= set(child.cmdline())
    ]
    trainer.kill()


@pytest.mark.long
def test_row_83_a_process_that_a_user_left_in_a_container_outlives_a_trainer_whose_watchdog_is_pid_1(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(PAUSES)
    with launched(tmp_path / "logdir", str(tmp_path / "train.py"), launcher=FIRST_PROCESS, cwd=ROOT) as run:
        run.wait_for("the program", lambda: "begun" in run.said())
        [first] = psutil.Process(run.process.pid).children()
        shell = "setsid sleep 98765 >/dev/null 2>&1 & echo $!"
        command = ("nsenter", "-t", str(first.pid), "-p", "-m", "sh", "-c", shell)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={"PATH": os.environ["PATH"]})
        [left] = run.wait_for("what is left", lambda: [one for one in first.children() if "98765" in one.cmdline()])
        kill_trainer(run)
        run.wait_event("spawned", 2, role="trainer")
        assert left.status() != psutil.STATUS_ZOMBIE
        left.kill()
        run.wait_for("its burial", lambda: not left.is_running())
