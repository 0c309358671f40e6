"""When Slurm signals every process of a job at once, the last step is saved from a real parameter
server without a kill.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

import psutil
import pytest
import tensorflow as tf

from tests.slurm.test_launch_under_slurm import ENDLESS, TASKS, Training
from tests.support.replicas import IN_STEP, last_trained
from tests.support.slurm import SlurmCluster
from tests.support.sudden_end import with_variable

pytestmark = [pytest.mark.fault, pytest.mark.long]

ENDED_S_MAX = 60.0  # on a busy machine
PATIENT = {"grace_s": 30, "kill_wait_s": 30}  # Slurm's defaults: late processes are killed and leave no output


def cancel(slurm: SlurmCluster, job: str) -> None:
    slurm.run("scancel", job)


def signal(slurm: SlurmCluster, job: str) -> None:
    slurm.run("scancel", "--signal=TERM", job)


def requeue(slurm: SlurmCluster, job: str) -> None:
    slurm.run("scontrol", "requeue", job)


def preempt(slurm: SlurmCluster, job: str) -> None:
    urgent = slurm.place / "urgent.sh"
    urgent.write_text("#!/bin/bash\nexit 0\n")
    slurm.submit(urgent, "--partition=high", "--nodes=4", "--exclusive")


WAYS: Mapping[str, Callable[[SlurmCluster, str], None]] = {
    "scancel": cancel,
    "scancel --signal": signal,
    "scontrol requeue": requeue,
    "preemption": preempt,
}


def processes_of(slurm: SlurmCluster, job: str) -> list[psutil.Process]:
    """Return a job's launches and everything that they have started."""
    of_job = with_variable(SLURM_CONF=slurm.environment["SLURM_CONF"], SLURM_JOB_ID=job)
    return [process for process in of_job if "procsv" in " ".join(process.cmdline())]


@pytest.mark.parametrize("slurm", [PATIENT], indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_the_last_step_of_all_tasks_is_saved_and_no_process_has_to_be_killed(slurm: SlurmCluster, way: str) -> None:
    training = Training(slurm, IN_STEP)
    (slurm.place / "pyproject.toml").write_text("[tool.procsv]\ndrop-in = true\n")
    job = training.submit(ENDLESS, "--partition=low")
    for task in TASKS[:3]:
        training.wait_event(job, "recovered", 1, task)
    step = training.step()
    training.wait_for(job, "steps of all", lambda: training.step() > step + 20)
    processes = processes_of(slurm, job)
    began_s = time.monotonic()

    WAYS[way](slurm, job)

    _, alive = psutil.wait_procs(processes, timeout=ENDED_S_MAX)
    took_s = time.monotonic() - began_s
    assert not alive
    (stopped,) = training.events("stopped")
    saved, trained = stopped["durable_step"], last_trained(training.logdir)
    print(f"{way}: {len(processes)} processes ended after {took_s:.1f} s; trained {trained}, on disk {saved}")
    assert saved == trained > step
    codes = {entry["role"]: entry["code"] for entry in training.events("exited") if entry["role"] in TASKS}
    assert codes == dict.fromkeys(TASKS, 75)
    values = tf.train.load_checkpoint(os.fspath(training.logdir)).get_tensor("weights")
    assert set(values) == {float(saved)}
