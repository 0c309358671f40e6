"""Every process of a step finds its own task, with real Slurm daemons placing them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from procsv.base.cluster import list_tasks
from tests.support.slurm import SlurmCluster

pytestmark = [pytest.mark.fault, pytest.mark.long]

SAY = (sys.executable, "-m", "tests.support.say_placement")
Said = dict[str, Any]


def said_by(text: str) -> list[Said]:
    """Return what each process printed, by rank."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda said: int(said["told"]["SLURM_PROCID"]))


def step(slurm: SlurmCluster, options: Sequence[str], workers: int, ps: int) -> list[Said]:
    done = slurm.run("srun", *options, *SAY, str(workers), str(ps))
    assert done.returncode == 0, done.stderr
    return said_by(done.stdout)


def check_tasks(said: list[Said], workers: int, ps: int) -> None:
    """Check that the processes share out all tasks and agree on what concerns the whole run."""
    placements = [process["placement"] for process in said]
    tasks = [str(task) for task in list_tasks(workers, ps, 0)]
    assert [placement["task"] for placement in placements] == tasks
    for field in ("tasks", "scheduler", "ranks"):
        assert all(placement[field] == placements[0][field] for placement in placements)


def nodes_of(said: list[Said]) -> list[str]:
    assert all(process["placement"]["host"] == process["told"]["SLURMD_NODENAME"] for process in said)
    return [process["placement"]["host"] for process in said]


def layout_of(said: list[Said]) -> list[int]:
    """Return for each process the number of its node, in order of appearance."""
    nodes = nodes_of(said)
    return [list(dict.fromkeys(nodes)).index(node) for node in nodes]


def test_each_node_of_a_step_gets_its_own_task(slurm: SlurmCluster) -> None:
    said = step(slurm, ["--nodes=4", "--ntasks=4"], 2, 1)
    check_tasks(said, 2, 1)
    assert nodes_of(said) == ["n1", "n2", "n3", "n4"]


@pytest.mark.parametrize(
    ("options", "layout"),
    [
        (["--ntasks=4", "--ntasks-per-node=2", "--distribution=block"], [0, 0, 1, 1]),
        (["--ntasks=4", "--ntasks-per-node=2", "--distribution=cyclic"], [0, 1, 0, 1]),
        (["--ntasks=4"], [0, 0, 0, 1]),  # a node fills up before the last one is used
    ],
    ids=["block", "cyclic", "uneven"],
)
def test_two_processes_on_one_node_are_two_members_in_any_layout(
    slurm: SlurmCluster, options: list[str], layout: list[int]
) -> None:
    said = step(slurm, ["--nodes=2", *options], 2, 1)
    check_tasks(said, 2, 1)
    assert layout_of(said) == layout


@pytest.mark.parametrize("slurm", [12], indirect=True)
def test_nodes_whose_names_do_not_sort_by_number_change_nothing(slurm: SlurmCluster) -> None:
    said = step(slurm, ["--nodes=12", "--ntasks=12"], 9, 2)
    check_tasks(said, 9, 2)
    assert nodes_of(said) == [f"n{number}" for number in range(1, 13)]


def test_a_step_of_the_wrong_size_exits_2_and_names_both_sizes(slurm: SlurmCluster) -> None:
    done = slurm.run("srun", "--nodes=2", "--ntasks=3", *SAY, "2", "1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("procsv: the step has 3 tasks, --workers 2 --ps 1 make 4 (1 chief, 2 workers, 1 ps)") == 3


def test_in_a_batch_job_each_step_is_a_new_start_and_the_script_itself_is_local(slurm: SlurmCluster) -> None:
    script = slurm.place / "job.sh"
    say = " ".join((*SAY, "1", "0"))
    script.write_text(f"#!/bin/bash\n{say}\nsrun {say}\nsrun {say}\nsrun --ntasks=1 --nodes=1 {say}\n")
    job = slurm.submit(script, "--nodes=2", "--ntasks=2")
    assert slurm.wait_job(job)["JobState"] == "COMPLETED", slurm.job_output(job)
    said = [json.loads(line) for line in slurm.job_output(job).splitlines() if line.startswith("{")]
    local = [process for process in said if process["placement"] is None]
    assert (len(said), len(local)) == (6, 2)
    for number in (0, 1):
        identity = f"slurm:{job}.0.{number}"
        members = [process for process in said if (process["placement"] or {}).get("scheduler") == identity]
        check_tasks(sorted(members, key=lambda process: int(process["told"]["SLURM_PROCID"])), 1, 0)


def test_a_requeued_job_is_a_new_start_of_the_run(slurm: SlurmCluster) -> None:
    script = slurm.place / "job.sh"
    requeue = "if [ ${SLURM_RESTART_COUNT:-0} = 0 ]; then scontrol requeue $SLURM_JOB_ID && read -rt 300 <> <(:); fi"
    script.write_text(f"#!/bin/bash\nsrun {' '.join(SAY)} 1 0\n{requeue}\nexit 0\n")
    job = slurm.submit(script, "--nodes=2", "--ntasks=2", "--requeue", "--open-mode=append")
    slurm.start_requeued(job)
    assert slurm.wait_job(job)["JobState"] == "COMPLETED", slurm.job_output(job)
    identities = [process["placement"]["scheduler"] for process in said_by(slurm.job_output(job))]
    assert sorted(identities) == [f"slurm:{job}.0.0"] * 2 + [f"slurm:{job}.1.0"] * 2


def test_an_interactive_allocation_works_like_a_batch_job(slurm: SlurmCluster) -> None:
    done = slurm.run("salloc", "--nodes=2", "--ntasks=2", "srun", *SAY, "1", "0")
    assert done.returncode == 0, done.stderr
    check_tasks(said_by(done.stdout), 1, 0)
    alone = slurm.run("salloc", "--nodes=2", "--ntasks=2", *SAY, "1", "0")
    assert json.loads(alone.stdout.splitlines()[-1])["placement"] is None
