"""The launch of each task carries out the planned faults for it once, on several machines, and
whole machines may fail.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.test_row_13_out_of_memory import a_small_cgroup
from tests.run.test_machines_cut_off import FOUND, OPTIONS, PROGRAM, end, wait_trains
from tests.support.launched import Launched
from tests.support.machines import machines
from tests.support.numpy_training import digest_after
from tests.support.own_machines import OwnMachine
from tests.support.programs import ROOT
from tests.support.small_places import in_cgroup

pytestmark = pytest.mark.fault

TASKS = ("chief", "worker.0")
GREEDY = (
    """
import os
if (os.environ["PROCSV_TASK"], os.environ["PROCSV_INCARNATION"]) == ("worker.0", "1"):
    taken = bytearray(2**30)
    for page in range(0, len(taken), 4096):
        taken[page] = 1
"""
    + PROGRAM
)


def plan(*faults: str) -> list[str]:
    return [word for fault in faults for word in ("--fault", fault)]


def told(run: Launched, event: str = "fault") -> list[tuple[str, Any]]:
    return [(entry["role"], entry["fault"]) for entry in run.events(event)]


@pytest.mark.long
def test_row_73_faults_for_tasks_on_other_machines_happen_there_once_across_launches(
    tmp_path: Path,
) -> None:
    faults = ("segfault worker.0 after 0s", "kill worker.0 at step 200", "stop worker.0 for 5s at step 400")
    with machines(tmp_path, TASKS, *OPTIONS, *plan(*faults), program=PROGRAM, PYTHONPATH=str(ROOT)) as run:
        chief = run.launch_all()
        chief.wait_event("fault", 3)
        worker = psutil.Process(chief.pid("worker.0"))
        chief.wait_for("a task that goes on", lambda: worker.status() != psutil.STATUS_STOPPED)
        assert told(chief) == [("worker.0", fault) for fault in faults]
        crashed, killed = (entry["evidence"] for entry in chief.events("exited", "worker.0"))
        assert crashed.startswith("SIGSEGV")  # the location follows if the process could still report it
        assert crashed.endswith(" (segfault worker.0 after 0s)")
        assert killed.endswith(" (kill worker.0 at step 200): SIGKILL")

        chief.process.terminate()
        assert run.codes() == dict.fromkeys(TASKS, 75)
        chief = run.launch_all()
        wait_trains(chief, 2)
        end(run)

        assert run.codes() == dict.fromkeys(TASKS, 0)
        assert len(told(chief)) == len(faults)


def test_row_71_a_task_that_exhausts_its_machines_memory_is_reported_by_that_machine_and_restarted(
    tmp_path: Path,
) -> None:
    with a_small_cgroup() as cgroup:
        if cgroup is None:
            pytest.skip("a cgroup of its own takes the rights of root, and a writable /sys/fs/cgroup")
        with machines(tmp_path, TASKS, *OPTIONS, program=GREEDY, PYTHONPATH=str(ROOT)) as run:
            run.launch("worker.0", within=in_cgroup(cgroup))
            chief = run.launch("chief")
            chief.wait_event("spawned", 2, "worker.0")
            chief.wait_step(chief.step() + 10)
            end(run)

            assert run.codes() == dict.fromkeys(TASKS, 0)
            first = chief.events("exited", "worker.0")[0]
            assert (first["cause"], first["signal"]) == ("oom", "SIGKILL")
            assert f"in {cgroup}/" in first["evidence"]
            assert not [entry for entry in chief.events("exited", "chief") if entry["cause"] != "completed"]


@pytest.mark.long
@pytest.mark.parametrize("hosts", [4], indirect=True)
def test_row_72_machines_cut_off_or_without_power_even_the_coordinators_do_not_change_the_bits(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    tasks, options = (*TASKS, "spare.0", "spare.1"), (*OPTIONS, "--spare-nodes", "2")
    with machines(tmp_path, tasks, *options, program=PROGRAM, hosts=hosts, **FOUND) as run:
        chief = run.launch_all()
        wait_trains(chief)
        hosts[1].send_signal(signal.SIGKILL)
        (lost,) = chief.wait_event("member_lost")
        assert (lost["role"], lost["host"]) == ("worker.0", hosts[1].address)
        wait_trains(chief, 2)
        replaced = next(host for host in hosts[2:] if host.address == lost["spare"])
        replaced.cut()
        lost = chief.wait_event("member_lost", 2)[1]
        assert (lost["role"], lost["host"]) == ("worker.0", replaced.address)
        wait_trains(chief, 3)
        replaced.mend()
        hosts[0].send_signal(signal.SIGKILL)
        killed = -signal.SIGKILL
        assert run.codes() == {"chief": killed, "worker.0": killed, "spare.0": 75, "spare.1": 75}
        saved = chief.events("checkpoint_durable")[-1]["step"]

        chief = run.launch_all()
        wait_trains(chief, 4)
        end(run)

        assert run.codes() == dict.fromkeys(tasks, 0)
        recovered = chief.events("recovered", "chief")[-1]
        # The machine may have died between a checkpoint and its announcement.
        assert (recovered["source"], recovered["step"] >= saved) == ("checkpoint", True)
        (completed,) = chief.events("run_completed")
        newest = chief.logdir / "procsv" / "logs" / f"chief.{recovered['incarnation']}.log"
        assert f"ended with {digest_after(completed['step'])}" in newest.read_text()


@pytest.mark.long
@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_machine_frozen_for_less_than_the_peer_timeout_ends_no_task_and_for_longer_ends_the_run(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    options = (*OPTIONS, "--peer-timeout", "30", "--coordinator-timeout", "60")
    with machines(tmp_path, TASKS, *options, program=PROGRAM, hosts=hosts, **FOUND) as run:
        chief = run.launch_all()
        wait_trains(chief)
        hosts[1].send_signal(signal.SIGSTOP)
        chief.wait_for("a machine that stands still", hosts[1].stands_still)
        hosts[1].send_signal(signal.SIGCONT)
        chief.wait_step(chief.step() + 400)
        assert not chief.events("member_lost")

        hosts[1].send_signal(signal.SIGSTOP)
        (lost,) = chief.wait_event("member_lost")
        assert lost["silent"] >= 30
        assert chief.wait_end() == 75
        hosts[1].send_signal(signal.SIGCONT)
        assert run.codes() == {"chief": 75, "worker.0": 75}
        (stopped,) = chief.events("stopped")
        assert stopped["durable_step"] == stopped["step"]


@pytest.mark.long
@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_coordinator_frozen_for_longer_than_the_peer_timeout_keeps_its_members(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    with machines(tmp_path, TASKS, *OPTIONS, program=PROGRAM, hosts=hosts, **FOUND) as run:
        chief = run.launch_all()
        wait_trains(chief)
        hosts[0].send_signal(signal.SIGSTOP)
        member = run.launches["worker.0"]
        member.wait_for("word of it", lambda: " is silent; " in member.said())
        hosts[0].send_signal(signal.SIGCONT)
        member.wait_for("word of it", lambda: f"{hosts[0].address} is back" in member.said())
        chief.wait_step(chief.step() + 50)
        end(run)

        assert run.codes() == {"chief": 0, "worker.0": 0}
        assert not chief.events("member_lost")
        assert len(chief.events("spawned", "worker.0")) == 1
