"""Faults of a plan for runs on several machines: each is carried out by the launch that it is for, once, and is in the run's journal.

Machines of a test's own can be cut off.  Launches on this one, without a network of their own, cannot, and say what that would take.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.test_row_13_out_of_memory import a_small_cgroup
from tests.run.test_machines_cut_off import FOUND, OPTIONS, PROGRAM, end, wait_trains
from tests.support.launched import Launched
from tests.support.machines import LAUNCH, machines
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
KILLED = 137  # as the first process of its machine, which nobody there can kill


def plan(*faults: str) -> list[str]:
    return [word for fault in faults for word in ("--fault", fault)]


def told(run: Launched, event: str = "fault") -> list[tuple[str, Any]]:
    return [(entry["role"], entry["fault"]) for entry in run.events(event)]


def states(host: OwnMachine) -> set[str]:
    """Those of its processes."""
    found: set[str] = set()
    for process in host.processes():
        with contextlib.suppress(psutil.Error):
            found.add(process.status())
    return found


def networks_up(host: OwnMachine) -> list[str]:
    argv = ["ip", "-n", host.network, "-json", "link", "show", "up"]
    found = json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)
    return [link["ifname"] for link in found if link]


def test_row_73_faults_for_tasks_of_other_machines_are_carried_out_there_each_once_over_launches(
    tmp_path: Path,
) -> None:
    faults = ("segfault worker.0 after 0s", "kill worker.0 at step 200", "stop worker.0 for 5s at step 400")
    with machines(tmp_path, TASKS, *OPTIONS, *plan(*faults), program=PROGRAM, PYTHONPATH=str(ROOT)) as run:
        chief = run.launch_all()
        chief.wait_event("fault", 3)
        worker = psutil.Process(chief.pid("worker.0"))
        chief.wait_for("a frozen task", lambda: worker.status() == psutil.STATUS_STOPPED)
        chief.wait_for("a task that goes on", lambda: worker.status() != psutil.STATUS_STOPPED)
        assert told(chief) == [("worker.0", fault) for fault in faults]
        crashed, killed = (entry["evidence"] for entry in chief.events("exited", "worker.0"))
        assert crashed.startswith("SIGSEGV")  # and where, if it has come as far as to say that
        assert crashed.endswith(", by the fault plan (segfault worker.0 after 0s)")
        assert killed == "the fault plan (kill worker.0 at step 200): SIGKILL"

        chief.process.terminate()
        assert run.codes() == dict.fromkeys(TASKS, 75)
        chief = run.launch_all()
        wait_trains(chief, 2)
        end(run)

        assert run.codes() == dict.fromkeys(TASKS, 0)
        assert len(told(chief)) == len(faults)


def test_row_73_a_cut_where_a_launch_has_no_network_of_its_own_is_skipped_and_says_what_it_takes(
    tmp_path: Path,
) -> None:
    fault = "cut machine of worker.0 for 5s at step 20"
    with machines(tmp_path, TASKS, *OPTIONS, *plan(fault), program=PROGRAM, PYTHONPATH=str(ROOT)) as run:
        chief = run.launch_all()
        (skipped,) = chief.wait_event("fault_skipped")
        assert skipped["fault"] == fault
        assert "it takes a network namespace with a name" in skipped["why"]
        said = f"skipping the fault '{fault}': it takes a network namespace"
        chief.wait_for("word of it", lambda: said in chief.said())
        end(run)

        assert run.codes() == dict.fromkeys(TASKS, 0)
        assert not told(chief)
        assert not chief.events("member_lost")


def test_row_71_a_task_that_runs_out_of_its_machines_memory_is_told_by_that_machine_and_started_again(
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


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_a_machine_that_is_killed_by_a_fault_is_replaced_by_a_spare_one_and_the_fault_does_not_come_again(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    fault = "kill machine of worker.0 at step 50"
    tasks, options = (*TASKS, "spare.0"), (*OPTIONS, "--spare-nodes", "1", *plan(fault))
    with machines(tmp_path, tasks, *options, program=PROGRAM, hosts=hosts, **FOUND) as run:
        chief = run.launch_all()
        (lost,) = chief.wait_event("member_lost")
        assert (lost["role"], lost["host"]) == ("worker.0", hosts[1].address)
        wait_trains(chief, 2)
        end(run)

        assert run.codes() == {"chief": 0, "spare.0": 0, "worker.0": KILLED}
        assert told(chief) == [("worker.0", fault)]


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_machine_that_stands_still_for_less_than_the_peer_timeout_ends_nobody_and_for_longer_the_run(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    faults = ("stop machine of worker.0 for 1s at step 30", "stop machine of worker.0 for 9s at step 400")
    with machines(tmp_path, TASKS, *OPTIONS, *plan(*faults), program=PROGRAM, hosts=hosts, **FOUND) as run:
        chief = run.launch_all()
        chief.wait_step(399)
        assert told(chief)[0] == ("worker.0", faults[0])
        assert not chief.events("member_lost")

        chief.wait_event("fault", 2)
        chief.wait_for("a machine that stands still", lambda: psutil.STATUS_STOPPED in states(hosts[1]))
        assert run.codes() == {"chief": 75, "worker.0": 75}
        (lost,) = chief.events("member_lost")
        assert told(chief) == [("worker.0", fault) for fault in faults]
        assert lost["silent"] >= 5
        (stopped,) = chief.events("stopped")
        assert stopped["durable_step"] == stopped["step"]


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_coordinator_that_stands_still_for_longer_than_the_peer_timeout_finds_its_members_as_they_were(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    fault = "stop machine of chief for 9s at step 50"
    with machines(tmp_path, TASKS, *OPTIONS, *plan(fault), program=PROGRAM, hosts=hosts, **FOUND) as run:
        chief = run.launch_all()
        member = run.launches["worker.0"]
        member.wait_for("word of it", lambda: "nothing is heard of the coordinator" in member.said())
        member.wait_for("word of it", lambda: f"the coordinator on {hosts[0].address} is back" in member.said())
        chief.wait_step(chief.step() + 50)
        end(run)

        assert run.codes() == {"chief": 0, "worker.0": 0}
        assert told(chief) == [("chief", fault)]
        assert not chief.events("member_lost")
        assert len(chief.events("spawned", "worker.0")) == 1


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_a_machine_that_is_cut_off_by_a_fault_is_lost_to_the_run_and_its_network_is_mended(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    fault = "cut machine of worker.0 for 12s at step 50"
    tasks, options = (*TASKS, "spare.0"), (*OPTIONS, "--spare-nodes", "1", *plan(fault))
    subprocess.run(["ip", "-n", hosts[1].network, "route", "add", "default", "via", hosts[0].address], check=True)
    with machines(tmp_path, tasks, *options, program=PROGRAM, hosts=hosts, **FOUND) as run:
        chief = run.launch_all()
        chief.wait_event("member_lost")
        assert networks_up(hosts[1]) == ["lo"]
        wait_trains(chief, 2)
        assert run.launches["worker.0"].wait_end() == 75
        assert "eth0" in networks_up(hosts[1])
        routes = subprocess.run(["ip", "-n", hosts[1].network, "route"], check=True, capture_output=True, text=True)
        assert f"default via {hosts[0].address}" in routes.stdout, "routes go with an interface"
        end(run)

        assert run.codes() == {"chief": 0, "spare.0": 0, "worker.0": 75}
        assert told(chief) == [("worker.0", fault)]


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_coordinator_that_cuts_itself_off_saves_ends_and_has_mended_its_network(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    fault = "cut machine of trainer for 60s at step 50"
    with machines(tmp_path, TASKS, *OPTIONS, *plan(fault), program=PROGRAM, hosts=hosts, **FOUND) as run:
        chief = run.launch_all()

        assert run.codes() == {"chief": 75, "worker.0": 75}
        assert "eth0" in networks_up(hosts[0])
        (stopped,) = chief.events("stopped")
        assert stopped["durable_step"] == stopped["step"] >= 50
        assert told(chief) == [("chief", "cut machine of chief for 60s at step 50")]


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_row_72_the_coordinators_machine_is_killed_by_a_fault_and_the_next_start_goes_on_from_the_disk(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    options = (*OPTIONS, *plan("kill machine of chief at step 300"))
    with machines(tmp_path, TASKS, *options, program=PROGRAM, hosts=hosts, **FOUND) as run:
        chief = run.launch_all()
        assert run.codes() == {"chief": KILLED, "worker.0": 75}
        saved = chief.events("checkpoint_durable")[-1]["step"]

        chief = run.launch_all()
        wait_trains(chief, 2)
        end(run)

        assert run.codes() == {"chief": 0, "worker.0": 0}
        recovered = chief.events("recovered", "chief")[-1]
        # The machine may have died between a checkpoint and the word of it.
        assert (recovered["source"], recovered["step"] >= saved) == ("checkpoint", True)
        assert len(told(chief)) == 1


CUT = """
import signal
from procsv.base.run.paths import find_paths
from procsv.watchdog.edge.faults.own_machine import OwnMachine
OwnMachine(find_paths(".")).befall("cut", 3600.0, 0.0)
print("cut", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("hosts", [1], indirect=True)
def test_row_73_a_launch_mends_the_network_that_one_which_was_killed_in_a_cut_has_left(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    (host,) = hosts
    inside = ("nsenter", f"--net=/run/netns/{host.network}")
    subprocess.run([*inside, "ip", "route", "add", "default", "via", "10.213.0.9"], check=True)
    with subprocess.Popen([*inside, sys.executable, "-c", CUT], stdout=subprocess.PIPE, cwd=ROOT) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"cut\n"
        assert networks_up(host) == ["lo"]
        killed.kill()

    options = ("--coordinator-timeout", "1", "--peer-timeout", "1")
    with machines(tmp_path, TASKS, *options) as run:
        alone = run.launch("worker.0", launcher=(*inside, *LAUNCH))
        assert alone.wait_end() == 75
        assert "eth0 is up again: a launch that was killed had cut it off" in alone.said()
    assert sorted(networks_up(host)) == ["eth0", "lo"]
    route = subprocess.run([*inside, "ip", "route", "show", "default"], check=True, capture_output=True, text=True)
    assert route.stdout.split()[:3] == ["default", "via", "10.213.0.9"]
    shown = subprocess.run([*inside, "ip", "link", "show", "eth0"], check=True, capture_output=True, text=True)
    assert "alias" not in shown.stdout
