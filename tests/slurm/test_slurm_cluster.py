"""The tests' own Slurm can lose a node as in a power cut, run beside another one, and leave nothing behind."""

from __future__ import annotations

import re
import subprocess

import psutil
import pytest

from tests.support.slurm import SlurmCluster
from tests.support.sudden_end import is_alive

pytestmark = [pytest.mark.fault, pytest.mark.long]

PID, LAUNCHED = re.compile(r"(n\d+) (\d+)$"), re.compile(r"Node (n\d+), \d+ tasks started")


def wait_launched(step: subprocess.Popen[str]) -> dict[str, int]:
    """Return the process on each of two nodes, once srun has heard from both.

    A task may start earlier, and if one node has not answered by then, srun ends the launch on all
    nodes.
    """
    assert step.stdout is not None
    pids, launched = dict[str, int](), set[str]()
    for line in step.stdout:
        if said := PID.match(line):
            pids[said[1]] = int(said[2])
        elif said := LAUNCHED.search(line):
            launched.add(said[1])
        if len(pids) == len(launched) == 2:
            return pids
    raise AssertionError(f"srun has ended: {pids}, {launched}")


def said_by(step: subprocess.Popen[str]) -> str:
    """Return srun's further output after ending it."""
    step.terminate()
    return step.communicate()[0]


def test_a_lost_node_ends_its_processes_and_the_other_nodes_go_on(slurm: SlurmCluster) -> None:
    say = "echo $SLURMD_NODENAME $$; exec sleep infinity"
    options = ("--verbose", "--nodes=2", "--ntasks=2", "--no-kill", "--kill-on-bad-exit=0")
    step = slurm.start_command("srun", *options, "sh", "-c", say)
    pids = wait_launched(step)
    lost = slurm.kill_node(1)
    assert pids["n1"] in lost
    assert not is_alive(pids["n1"])
    assert is_alive(pids["n2"]), said_by(step)
    assert psutil.Process(pids["n2"]).status() != psutil.STATUS_STOPPED
    slurm.start_node(1)
    slurm.run("scancel", "--user=root")
    step.communicate()
    slurm.wait_idle(slurm.nodes)


def test_two_clusters_run_side_by_side_and_leave_nothing_behind(slurm: SlurmCluster) -> None:
    other = SlurmCluster(2)
    try:
        other.start()
        for cluster in (slurm, other):
            done = cluster.run("srun", f"--nodes={cluster.nodes}", "printenv", "SLURMD_NODENAME")
            assert sorted(done.stdout.split()) == [f"n{number + 1}" for number in range(cluster.nodes)], done.stderr
    finally:
        other.stop()
    assert not other.place.exists()
