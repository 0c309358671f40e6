"""Machines of a training with TensorFlow that are lost: of a parameter server, which has the variables, and of the gang's tasks."""

from __future__ import annotations

import json
import signal
import tempfile
from pathlib import Path

import psutil
import pytest

from procsv.drill import networks
from tests.run import test_gang
from tests.run.test_machines_cut_off import OPTIONS, PROGRAM, end, wait_trains
from tests.support.launched import procsv
from tests.support.machines import machines
from tests.support.own_machines import OwnMachine
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault

REPLICAS = ("procsv.examples.replicas", "--steps", "1000000", "--step-ms", "20")


@pytest.mark.parametrize("hosts", [4], indirect=True)
def test_row_72_the_machine_of_a_server_is_lost_and_a_spare_one_serves_what_the_newest_snapshot_has(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    tasks = ("chief", "worker.0", "ps.0", "spare.0")
    options = ("--spare-nodes", "1", "--peer-timeout", "5", "--snapshot-secs", "0.5", "--grace", "10")
    fault = ("--fault", "kill machine of ps.0 at step 200")
    with machines(tmp_path, tasks, *options, *fault, target=REPLICAS, hosts=hosts, PYTHONPATH=str(ROOT)) as run:
        chief = run.launch_all()
        (lost,) = chief.wait_event("member_lost")
        assert (lost["role"], lost["spare"]) == ("ps.0", hosts[3].address)
        chief.wait_event("run_started", 2)
        chief.wait_event("recovered", 2, "chief")
        chief.wait_event("recovered", 2, "worker.0")

        (struck,), (stopped,) = chief.events("fault"), chief.events("stopped")
        first, second = chief.events("recovered", "chief")
        assert (first["source"], second["source"]) == ("fresh", "checkpoint")
        assert second["step"] == stopped["durable_step"] > 0
        assert struck["step"] - second["step"] <= 200, "a snapshot every half second, of steps of 20 ms and more"
        assert chief.events("recovered", "worker.0")[-1]["source"] == "chief"
        assert chief.events("run_started")[1]["hosts"]["ps.0"] == hosts[3].address
        chief.wait_step(second["step"] + 20)


def test_row_72_a_launch_that_is_killed_takes_its_task_along_and_a_spare_one_has_its_place(tmp_path: Path) -> None:
    tasks, options = ("chief", "worker.0", "spare.0"), (*OPTIONS, "--spare-nodes", "1")
    with (
        tempfile.TemporaryDirectory() as own,  # what is killed leaves there what its next start would clear away
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


@pytest.mark.slow
def test_row_71_of_a_gang_over_machines_a_task_is_killed_frozen_and_raises_and_its_machine_dies_and_the_bits_are_the_same(
    tmp_path: Path,
) -> None:
    if why := networks.why_no_networks():
        pytest.skip(why)
    program = test_gang.PROGRAM.replace(f"int(step) == {test_gang.GATE}", "False")
    program = program.replace(str(test_gang.STEPS), "600").replace('"elsewhere"', repr(str(tmp_path / "elsewhere")))
    (tmp_path / "train.py").write_text(program)
    faults = (
        "kill worker.1 at step 100",
        "raise worker.1 at step 200",
        "stop worker.1 for 60s at step 300",
        "kill machine of worker.1 at step 400",
    )
    options = ("--machines", "--workers", "2", "--no-chief", "--peer-timeout", "3", "--snapshot-secs", "0.2", "--json")
    told = [word for fault in faults for word in ("--fault", fault)]
    done = procsv(
        "drill", *options, *told, "--logdir", str(tmp_path / "drill"), str(tmp_path / "train.py"), timeout_s=560
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert (said["held"], said["variables"], said["not_happened"], said["skipped"]) == (True, "identical", [], {})
    assert [(row["fault"], row["ended_trainer"]) for row in said["faults"]] == [(fault, True) for fault in faults]
    journal = [json.loads(line) for line in (tmp_path / "drill/drilled/procsv/journal.jsonl").read_text().splitlines()]
    ends = [entry for entry in journal if entry["event"] == "exited" and entry["role"] == "worker.1"]
    assert [entry["cause"] for entry in ends][:2] == ["killed", "exception"]
    assert all(entry["cause"] != "completed" for entry in ends[:-1])
