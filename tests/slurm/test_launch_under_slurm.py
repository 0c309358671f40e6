"""A training of several launches survives what a real Slurm does to its job, with the script that
procsv ships.

The chief, two workers and a server have one node each. The chief trains NumPy arrays; the others
wait.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psutil
import pytest

from procsv.base.journal.file import JournalReader
from procsv.base.run.paths import find_paths
from tests.support.launched import NEWS_S_MAX, procsv
from tests.support.manifests import DEPLOY
from tests.support.slurm import SlurmCluster

pytestmark = [pytest.mark.fault, pytest.mark.long]

TASKS = ("chief", "worker.0", "worker.1", "ps.0")
PROGRAM = """
import os, pathlib, runpy, sys, threading
print("I am", os.environ["PROCSV_TASK"], flush=True)
if os.environ["PROCSV_TASK"] != "chief":
    threading.Event().wait()
sys.argv[1:] = [pathlib.Path("steps").read_text(), "0.01"]
runpy.run_module("tests.support.numpy_training", run_name="__main__")
"""
ENDLESS = 10**6
T = TypeVar("T")
Entry = dict[str, Any]


class Training:
    """Jobs of the shipped script, on one logdir."""

    def __init__(self, slurm: SlurmCluster, program: str = PROGRAM) -> None:
        self.slurm, self.logdir = slurm, slurm.place / "run"
        self._journal = JournalReader(self.logdir / "procsv" / "journal.jsonl")
        tools = slurm.place / "tools"
        tools.mkdir()
        self._tool = tools / "procsv"
        self._tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m procsv "$@"\n')
        self._tool.chmod(0o700)
        self._path = f"{tools}:{slurm.environment['PATH']}"
        (slurm.place / "train.py").write_text(program)

    def submit(self, steps: int, *options: str, spares: int = 0) -> str:
        """The number of a job that trains to that step."""
        self.train_to(steps)
        variables = {"PATH": self._path, "LOGDIR": str(self.logdir), "PROCSV_HOST": "127.0.0.1"}
        variables["SPARES"] = str(spares)
        options = ("--cpus-per-task=1", "--time=10", *(("--no-kill",) if spares else ()), *options)
        return self.slurm.submit(DEPLOY / "slurm.sbatch", *options, **variables)

    def start_again_what_is_killed(self) -> None:
        """Has a launch be started by a loop, within the same step."""
        command = f'{shlex.quote(sys.executable)} -m procsv "$@"; code=$?; [ $code = 137 ] || exit $code'
        self._tool.write_text(f"#!/bin/bash\nwhile :; do {command}; done\n")

    def step(self) -> int:
        return int(json.loads(find_paths(self.logdir).run_json.read_bytes())["step"])

    def train_to(self, steps: int) -> None:
        """Where the next start of the program ends."""
        (self.slurm.place / "steps").write_text(str(steps))

    def events(self, name: str, role: str | None = None) -> list[Entry]:
        lines = (line.as_dict() for line in self._journal.lines())
        return [entry for entry in lines if entry["event"] == name and role in (None, entry["role"])]

    def wait_event(self, job: str, name: str, count: int = 1, role: str | None = None) -> list[Entry]:
        return self.wait_for(
            job, f"{count} x {name}", lambda: self.events(name, role)[count - 1 :] and self.events(name, role)
        )

    def wait_for(self, job: str, what: str, found: Callable[[], T]) -> T:
        until_s, pause = time.monotonic() + NEWS_S_MAX, threading.Event()
        while not (result := found()):
            assert time.monotonic() < until_s, f"no {what}: {self.slurm.job_output(job)}"
            pause.wait(0.05)
        return result

    def wait_all_run(self, job: str, count: int = 1) -> None:
        """Waits until every task was started so often, and the chief trains."""
        for task in TASKS:
            self.wait_event(job, "spawned", count, task)
        self.wait_event(job, "recovered", count, "chief")

    def assert_completes(self, job: str) -> None:
        done = self.slurm.wait_job(job)
        assert (done["JobState"], done["ExitCode"]) == ("COMPLETED", "0:0"), self.slurm.job_output(job)


@pytest.fixture
def training(slurm: SlurmCluster) -> Training:
    return Training(slurm)


def test_a_killed_task_comes_back_within_its_allocation_and_the_job_completes(training: Training) -> None:
    job = training.submit(ENDLESS)
    training.wait_all_run(job)
    psutil.Process(training.events("spawned", "worker.1")[-1]["pid"]).kill()
    training.wait_event(job, "spawned", 2, "worker.1")
    training.train_to(training.events("recovered", "chief")[-1]["step"] + 1000)
    psutil.Process(training.events("spawned", "chief")[-1]["pid"]).kill()
    training.assert_completes(job)
    assert training.slurm.describe_job(job)["Restarts"] == "0"
    assert len(training.events("run_completed")) == 1


def test_row_70_a_coordinator_restarted_by_a_loop_within_the_step_adopts_the_tasks_on_the_other_nodes(
    training: Training,
) -> None:
    training.start_again_what_is_killed()
    job = training.submit(ENDLESS)
    training.wait_all_run(job)
    tasks = {task: training.events("spawned", task)[-1]["pid"] for task in TASKS[1:]}
    training.wait_for(job, "a step", lambda: training.step() > 0)
    watchdog = psutil.Process(training.events("run_started")[-1]["pid"])
    stop_everything(watchdog)
    training.train_to(training.step() + 2000)

    kill_everything(watchdog)

    training.wait_event(job, "ready", 2, "chief")
    assert {entry["role"]: entry["pid"] for entry in training.events("adopted")} == tasks
    training.assert_completes(job)
    assert training.slurm.describe_job(job)["Restarts"] == "0"
    assert [len(training.events("spawned", task)) for task in TASKS] == [2, 1, 1, 1]


def stop_everything(watchdog: psutil.Process) -> None:
    """All that runs on that node stands still."""
    for process in (watchdog, *watchdog.children(recursive=True)):
        process.suspend()


def kill_everything(watchdog: psutil.Process) -> None:
    """All that has stood still on that node is gone at once."""
    for process in (watchdog, *watchdog.children(recursive=True)):
        process.kill()


def test_a_second_job_on_the_logdir_is_refused_by_all_its_launches_and_does_no_harm(
    slurm: SlurmCluster, training: Training
) -> None:
    half = ("--nodes=2", "--ntasks-per-node=2")
    first = training.submit(ENDLESS, *half)
    training.wait_all_run(first)
    second = training.submit(ENDLESS, *half)
    refused = slurm.wait_job(second)
    assert (refused["JobState"], refused["ExitCode"], refused["Restarts"]) == ("FAILED", "73:0", "0")
    assert slurm.job_output(second).count("is in use") >= len(TASKS)
    assert slurm.describe_job(first)["JobState"] == "RUNNING"
    assert len(training.events("run_started")) == 1


def test_a_step_of_the_wrong_size_fails_at_once_with_both_sizes_and_is_not_requeued(
    slurm: SlurmCluster, training: Training
) -> None:
    job = training.submit(ENDLESS, "--nodes=3", "--ntasks=3")
    refused = slurm.wait_job(job)
    assert (refused["JobState"], refused["ExitCode"], refused["Restarts"]) == ("FAILED", "2:0", "0")
    assert "the step has 3 tasks, --workers 2 --ps 1 make 4 (1 chief, 2 workers, 1 ps)" in slurm.job_output(job)
    assert not training.logdir.exists()


def test_a_job_notified_of_its_time_limit_saves_requeues_itself_and_resumes(
    slurm: SlurmCluster, training: Training
) -> None:
    job = training.submit(ENDLESS)
    training.wait_all_run(job)
    slurm.run("scancel", "--signal=TERM", job)  # to the steps, as --signal=TERM@120 has it
    check_resumes(training, job)


def test_a_preempted_job_saves_within_the_grace_period_requeues_itself_and_resumes(
    slurm: SlurmCluster, training: Training
) -> None:
    job = training.submit(ENDLESS, "--partition=low")
    training.wait_all_run(job)
    urgent = slurm.place / "urgent.sh"
    urgent.write_text("#!/bin/bash\nexit 0\n")
    higher = slurm.submit(urgent, "--partition=high", "--nodes=4", "--exclusive")
    assert slurm.wait_job(higher)["JobState"] == "COMPLETED"
    check_resumes(training, job)


def check_resumes(training: Training, job: str) -> None:
    """The job was stopped with its last step on disk, and completes from there once it is started again."""
    (stopped,) = training.wait_event(job, "stopped")
    assert stopped["durable_step"] == stopped["step"] > 0
    training.train_to(stopped["step"] + 10)
    training.slurm.start_requeued(job)
    training.assert_completes(job)
    assert training.slurm.describe_job(job)["Restarts"] == "1"
    recovered = training.events("recovered", "chief")[-1]
    assert (recovered["source"], recovered["step"]) == ("checkpoint", stopped["step"])


def test_a_job_that_loses_a_node_saves_and_resumes_on_the_remaining_nodes(
    slurm: SlurmCluster, training: Training
) -> None:
    job = training.submit(ENDLESS, "--nodes=3")
    training.wait_all_run(job)
    slurm.kill_node(3)
    check_resumes(training, job)


@pytest.mark.parametrize("slurm", [5], indirect=True)
def test_a_job_that_loses_a_node_and_has_a_spare_restarts_in_its_allocation_and_completes(
    slurm: SlurmCluster, training: Training
) -> None:
    job = training.submit(ENDLESS, "--nodes=5", "--ntasks=5", spares=1)
    training.wait_all_run(job)
    (began,) = training.events("run_started")
    assert began["hosts"] == {task: f"n{number}" for number, task in enumerate(TASKS, 1)}
    assert tuple(began["spare_hosts"]) == ("n5",)
    read = {node: procsv("logs", str(training.logdir), "--node", node) for node in ("n1", "n2", "n7")}
    assert ["chief" in read[node].stdout for node in ("n1", "n2")] == [True, False]
    assert "'n7': its machines are n1, n2, n3, n4" in read["n7"].stderr

    slurm.kill_node(3)

    (lost,) = training.wait_event(job, "member_lost")
    training.wait_event(job, "run_started", 2)
    training.wait_all_run(job, 2)
    assert (lost["role"], lost["host"], lost["spare"]) == ("worker.1", "n3", "n5")
    assert training.events("run_started")[1]["hosts"]["worker.1"] == "n5"
    (stopped,) = training.events("stopped")
    assert training.events("recovered", "chief")[-1]["step"] == stopped["durable_step"] == stopped["step"]
    training.train_to(stopped["step"] + 10)
    psutil.Process(training.events("spawned", "chief")[-1]["pid"]).kill()  # it reads anew how far to train
    training.assert_completes(job)
    assert slurm.describe_job(job)["Restarts"] == "0"
    slurm.start_node(3)  # Slurm waits for it with the end of the job
    for left in find_paths(training.logdir).run_dir.parent.glob("procsv-*/worker.1.1.heartbeat"):
        shutil.rmtree(left.parent)  # of the lost node, unless a launch has swept it


def test_a_job_that_loses_the_chiefs_node_and_its_script_resumes_from_what_is_left_elsewhere(
    slurm: SlurmCluster, training: Training
) -> None:
    job = training.submit(ENDLESS, "--nodes=3")
    training.wait_all_run(job)
    training.wait_event(job, "checkpoint_durable", 2)
    slurm.kill_node(1)
    shutil.rmtree(find_paths(training.logdir).shm_dir)  # the node's memory
    saved = training.events("checkpoint_durable")[-1]["step"]
    training.train_to(saved + 500)
    slurm.start_requeued(job)
    training.assert_completes(job)
    recovered = training.events("recovered", "chief")[-1]
    if fetched := training.events("mirror_fetched"):
        assert (recovered["source"], recovered["step"]) == ("memory", fetched[-1]["step"])
    else:  # the copy that another node had was of no later step
        assert recovered["source"] == "checkpoint"
    assert recovered["step"] >= saved  # the last one may have been on disk before it was told


@pytest.mark.parametrize("slurm", [5], indirect=True)
def test_the_remaining_launches_requeue_a_job_with_spare_nodes_that_loses_the_chiefs_node(
    slurm: SlurmCluster, training: Training
) -> None:
    (slurm.place / "pyproject.toml").write_text("[tool.procsv]\ncoordinator-timeout = '20s'\n")
    job = training.submit(ENDLESS, "--nodes=5", "--ntasks=5", spares=1)
    training.wait_all_run(job)
    training.wait_event(job, "checkpoint_durable", 2)
    slurm.kill_node(1)
    shutil.rmtree(find_paths(training.logdir).shm_dir)
    saved = training.events("checkpoint_durable")[-1]["step"]
    training.train_to(saved + 500)
    slurm.start_requeued(job)
    slurm.start_node(1)
    training.assert_completes(job)
    assert training.events("recovered", "chief")[-1]["step"] >= saved
