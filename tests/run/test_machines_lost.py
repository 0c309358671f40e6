"""A TensorFlow training survives the loss of the machine that holds its variables, and of the
machines of a gang.
"""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.run import test_gang
from tests.run.test_machines_cut_off import FOUND, OPTIONS, PROGRAM, end, wait_trains
from tests.support.machines import machines
from tests.support.own_machines import OwnMachine
from tests.support.programs import ROOT
from tests.support.replicas import wait_for_memory

pytestmark = pytest.mark.fault

REPLICAS = ("procsv.examples.replicas", "--steps", "1000000", "--step-ms", "20")


@pytest.mark.parametrize("hosts", [4], indirect=True)
@pytest.mark.long
def test_row_72_when_a_servers_machine_is_lost_a_spare_serves_the_newest_snapshot(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    tasks = ("chief", "worker.0", "ps.0", "spare.0")
    options = ("--spare-nodes", "1", "--peer-timeout", "5", "--snapshot-secs", "0.5", "--grace", "10")
    with machines(tmp_path, tasks, *options, target=REPLICAS, hosts=hosts, PYTHONPATH=str(ROOT)) as run:
        chief = run.launch_all()
        chief.wait_step(200)
        kept = wait_for_memory(chief, 200)
        hosts[2].send_signal(signal.SIGKILL)
        (lost,) = chief.wait_event("member_lost")
        assert (lost["role"], lost["spare"]) == ("ps.0", hosts[3].address)
        chief.wait_event("run_started", 2)
        chief.wait_event("recovered", 2, "chief")
        chief.wait_event("recovered", 2, "worker.0")

        (stopped,) = chief.events("stopped")
        first, second = chief.events("recovered", "chief")
        assert (first["source"], second["source"]) == ("fresh", "checkpoint")
        assert second["step"] == stopped["durable_step"] >= kept > 0
        assert chief.events("recovered", "worker.0")[-1]["source"] == "chief"
        assert chief.events("run_started")[1]["hosts"]["ps.0"] == hosts[3].address
        chief.wait_step(second["step"] + 20)


@pytest.mark.long
def test_row_72_a_killed_launch_ends_its_task_and_a_spare_replaces_it(tmp_path: Path) -> None:
    tasks, options = ("chief", "worker.0", "spare.0"), (*OPTIONS, "--spare-nodes", "1")
    with (
        tempfile.TemporaryDirectory() as own,  # a killed launch leaves files there that its next start would remove
        machines(tmp_path, tasks, *options, program=PROGRAM, PYTHONPATH=str(ROOT)) as run,
    ):
        run.launch("worker.0", XDG_RUNTIME_DIR=own)
        run.launch("spare.0")
        chief = run.launch("chief")
        wait_trains(chief)
        orphan = psutil.Process(chief.pid("worker.0"))

        run.launches["worker.0"].process.kill()

        assert not psutil.wait_procs([orphan], timeout=60)[1]
        (lost,) = chief.wait_event("member_lost")
        assert lost["role"] == "worker.0"
        wait_trains(chief, 2)
        end(run)
        assert run.codes() == {"chief": 0, "spare.0": 0, "worker.0": -signal.SIGKILL}


@pytest.mark.long
@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_row_71_a_gang_over_machines_ends_with_the_same_bits_though_a_task_is_killed_frozen_or_raises_and_a_machine_dies(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    faults = ("kill worker.1 at step 100", "raise worker.1 at step 200", "stop worker.1 for 60s at step 300")
    options = [
        "--workers",
        "2",
        "--no-chief",
        "--cluster",
        "tf-config",
        "--peer-timeout",
        "5",
        "--snapshot-secs",
        "0.2",
    ]
    rules_off = ("--repeated-failures", "0", "--min-goodput", "0")  # the plan causes faults close together
    told = [word for fault in faults for word in ("--fault", fault)]
    tasks = (*test_gang.TASKS, "spare.0")
    more = ("--spare-nodes", "1", *rules_off, *told)
    with machines(tmp_path, tasks, *options, *more, program=test_gang.PROGRAM, hosts=hosts, **FOUND) as run:
        first = run.launch_all()
        first.wait_event("gang_formed", 4)
        hosts[1].send_signal(signal.SIGKILL)
        first.wait_event("run_started", 2)
        first.wait_event("gang_formed", 5)
        (tmp_path / "open").touch()

        assert run.codes() == {"worker.0": 0, "worker.1": -signal.SIGKILL, "spare.0": 0}
        assert [entry["fault"] for entry in first.events("fault")] == list(faults)
        ends = [entry["cause"] for entry in first.events("exited", "worker.1")]
        assert (ends[:2], len(ends), ends[-1]) == (["killed", "exception"], 5, "completed")
        bits = test_gang.variables_of(first)
    alone = tmp_path / "undisturbed"
    alone.mkdir()
    (alone / "open").touch()
    with machines(alone, test_gang.TASKS, *options, program=test_gang.PROGRAM) as run:
        first = run.launch_all()
        assert run.codes() == dict.fromkeys(test_gang.TASKS, 0)
        assert (test_gang.variables_of(first), len(bits)) == (bits, 1)
