"""The Slurm of the tests: it loses a node as a power cut would have it, several stand side by side, and nothing is left of one."""

from __future__ import annotations

import psutil
import pytest

from tests.support.slurm import SlurmCluster
from tests.support.sudden_end import is_alive

pytestmark = [pytest.mark.fault, pytest.mark.long]


def test_a_lost_node_takes_its_processes_along_and_the_other_nodes_go_on(slurm: SlurmCluster) -> None:
    say = "echo $SLURMD_NODENAME $$; exec sleep infinity"
    step = slurm.start_command("srun", "--nodes=2", "--ntasks=2", "--no-kill", "--kill-on-bad-exit=0", "sh", "-c", say)
    assert step.stdout is not None
    said = [step.stdout.readline().split() for _ in range(2)]
    pids = {node: int(pid) for node, pid in said}
    lost = slurm.kill_node(1)
    assert pids["n1"] in lost
    assert not is_alive(pids["n1"])
    assert is_alive(pids["n2"])
    assert psutil.Process(pids["n2"]).status() != psutil.STATUS_STOPPED
    slurm.start_node(1)
    slurm.run("scancel", "--user=root")
    step.communicate()
    slurm.wait_idle(slurm.nodes)


def test_two_clusters_stand_side_by_side_and_nothing_is_left_of_one(slurm: SlurmCluster) -> None:
    other = SlurmCluster(2)
    try:
        other.start()
        for cluster in (slurm, other):
            done = cluster.run("srun", f"--nodes={cluster.nodes}", "printenv", "SLURMD_NODENAME")
            assert sorted(done.stdout.split()) == [f"n{number + 1}" for number in range(cluster.nodes)], done.stderr
    finally:
        other.stop()
    assert not other.place.exists()
