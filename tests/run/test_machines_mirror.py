"""When the coordinator's machine is lost, training resumes from the copy of its memory on another machine."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from procsv.base.run.paths import SHM_ROOT, find_paths
from tests.run import test_gang
from tests.run.test_machines_adopted import kill_machine
from tests.support import numpy_training
from tests.support.launched import Launched
from tests.support.machines import Machines, machines
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault

STEPS, GATE = 600, 450  # the gate opens only when the test opens it
PROGRAM = f"""
import os, pathlib, threading
if os.environ["PROCSV_TASK"] != "chief":
    threading.Event().wait()
from tests.support import numpy_training

def is_over(step):
    while step == {GATE} and not pathlib.Path("open").exists() and numpy_training.current().stops.reason is None:
        threading.Event().wait(0.02)
    return step >= {STEPS}

numpy_training.train_until(is_over, 0.005, save_s=86_400.0)
"""
PACED_S = 1.0  # a copy takes a small part of it, even on a busy machine
PACED = "from tests.support.numpy_training import train_chief\n\ntrain_chief(save_s=86_400.0)\n"
OPTIONS = ("--cluster", "slurm", "--workers", "1", "--snapshot-secs", "0.1", "--peer-timeout", "5", "--grace", "10")
PACED_OPTIONS = (*OPTIONS[:4], "--snapshot-secs", str(PACED_S), *OPTIONS[-4:])
TASKS = ("chief", "worker.0")
FOUND = {"PYTHONPATH": str(ROOT)}


def launch(run: Machines, task: str, machine: int = 0, **env: str) -> Launched:
    """Launch on that machine, with its name and its memory; without one, on a machine of its own."""
    number = machine or list(map(str, run.tasks)).index(task) + 1
    return run.launch(task, PROCSV_HOST=f"127.0.0.{number}", SLURMD_NODENAME=f"n{number}", **env)


def launch_all(run: Machines) -> Launched:
    for task in reversed(run.tasks):
        launch(run, str(task))
    return run.launches[str(run.tasks[0])]


def mirrored(run: Launched) -> int:
    return int(json.loads((run.logdir / "procsv" / "run.json").read_text())["mirror_step"])


def wait_mirrored(run: Launched, step: int) -> int:
    """Wait for a copy of a later step. Return that step."""
    run.wait_event("mirror_kept")
    run.wait_for(f"a copy of a step after {step}", lambda: mirrored(run) > step)
    return mirrored(run)


def lose(launch: Launched) -> None:
    """End its machine: all processes and everything in its memory."""
    kill_machine(launch)
    paths = find_paths(launch.logdir)
    shutil.rmtree(paths.shm_dir)
    shutil.rmtree(paths.run_dir)


def mirrors(logdir: Path) -> list[Path]:
    """Return the kept copies on any machine."""
    return list(SHM_ROOT.glob(f"{find_paths(logdir).shm_dir.name}-mirror-*/*"))


def ended_with(run: Launched) -> set[str]:
    logs = [log.read_text() for log in (run.logdir / "procsv" / "logs").glob("chief.*.log")]
    return {line.split()[-1] for text in logs for line in text.splitlines() if "ended with" in line}


@pytest.mark.long
def test_row_78_training_resumes_from_the_copy_on_another_machine_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, *OPTIONS, program=PROGRAM, hosts=(), **FOUND) as run:
        chief = launch_all(run)
        step = wait_mirrored(chief, 30)
        lose(chief)
        saved = [entry["step"] for entry in chief.events("checkpoint_durable")]
        assert max(saved, default=0) == 0 < step

        again = launch(run, "chief")

        again.wait_event("recovered", 2, "chief")
        recovered = again.events("recovered", "chief")[-1]
        assert (recovered["source"], recovered["step"] >= step) == ("memory", True)
        (fetched,) = again.events("mirror_fetched")
        assert (fetched["step"], fetched["host"]) == (recovered["step"], "127.0.0.2")
        assert again.events("mirror_kept", "worker.0")
        (tmp_path / "open").touch()
        assert run.codes() == dict.fromkeys(TASKS, 0)
        (bits,) = ended_with(again)
        assert not mirrors(run.logdir), "nothing is left in shared memory"
    assert bits == numpy_training.digest_after(STEPS)


def test_the_chief_snapshots_early_enough_that_a_copy_is_whole_at_the_end_of_the_interval(
    tmp_path: Path,
) -> None:
    with machines(tmp_path, TASKS, *PACED_OPTIONS, program=PACED, hosts=(), **FOUND) as run:
        chief = launch_all(run)
        chief.wait_for("room for a copy", lambda: 0 < snapshots(chief)["apart"] < snapshots(chief)["interval"])
        assert snapshots(chief)["interval"] == PACED_S
        (chief.logdir / "end").touch()
        assert run.codes() == dict.fromkeys(TASKS, 0)


def snapshots(run: Launched) -> dict[str, Any]:
    return run.status()["snapshots"] or {"apart": 0, "interval": 0}


@pytest.mark.long
@pytest.mark.parametrize("has_moved", [False, True])
def test_row_78_after_all_launches_have_ended_the_next_job_finds_the_copy_whichever_task_is_on_that_machine(
    tmp_path: Path, has_moved: bool
) -> None:
    with machines(tmp_path, TASKS, *OPTIONS, program=PROGRAM, hosts=(), **FOUND) as run:
        chief = launch_all(run)
        step = wait_mirrored(chief, 30)
        lose(chief)
        left = run.launches["worker.0"]
        left.wait_for("word of the loss", lambda: " is silent; " in left.said())
        left.process.send_signal(signal.SIGTERM)  # the scheduler gives the job up
        assert left.wait_end() == 75
        assert len(mirrors(run.logdir)) == 1

        for task, machine in zip(TASKS, (2, 3) if has_moved else (3, 2), strict=True):
            launch(run, task, machine, SLURM_RESTART_COUNT="1")
        again = run.launches["chief"]

        again.wait_event("recovered", 2, "chief")
        recovered = again.events("recovered", "chief")[-1]
        assert (recovered["source"], recovered["step"] >= step) == ("memory", True)
        (fetched,) = again.events("mirror_fetched")
        assert (fetched["step"], fetched["host"]) == (recovered["step"], "127.0.0.2")
        (tmp_path / "open").touch()
        assert run.codes() == dict.fromkeys(TASKS, 0)
        assert not mirrors(run.logdir)


@pytest.mark.long
def test_row_78_a_copy_damaged_in_transit_is_not_used_and_the_checkpoint_is(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, *OPTIONS, program=PROGRAM, hosts=(), **FOUND) as run:
        launch(run, "worker.0", PROCSV_FAILPOINTS="sender.piece=1*torn")
        chief = launch(run, "chief")
        wait_mirrored(chief, 30)
        lose(chief)

        again = launch(run, "chief")

        again.wait_event("recovered", 2, "chief")
        assert again.events("recovered", "chief")[-1]["source"] == "checkpoint"
        (entry,) = again.events("mirror_not_fetched")
        assert "damaged" in entry["why"]
        assert f"step {entry['step']} on 127.0.0.2 cannot" in again.said()
        (tmp_path / "open").touch()
        assert run.codes() == dict.fromkeys(TASKS, 0)


@pytest.mark.long
def test_row_78_a_gang_restarts_from_the_copy_and_both_members_end_with_the_same_bits(
    tmp_path: Path,
) -> None:
    gang, options = ("worker.0", "worker.1"), ("--workers", "2", "--no-chief", "--snapshot-secs", "0.2")
    with machines(tmp_path, gang, *OPTIONS[:2], *options, *OPTIONS[-4:], program=test_gang.ARRAYS) as run:
        chief = launch_all(run)
        step = wait_mirrored(chief, 100)
        lose(chief)
        saved = [entry["step"] for entry in chief.events("checkpoint_durable")]
        assert max(saved, default=0) < step

        again = launch(run, "worker.0")

        again.wait_event("gang_formed", 2)
        begun = [entry for entry in again.events("recovered") if entry["incarnation"] == 2]
        assert [(entry["source"], entry["step"] >= step) for entry in begun] == [("memory", True)] * 2
        (tmp_path / "open").touch()
        assert run.codes() == dict.fromkeys(gang, 0)
        assert test_gang.variables_of(again) == {numpy_training.digest_after(test_gang.STEPS)}
        assert not mirrors(run.logdir)
