"""Launches survive when their machines are cut off, frozen or lose power.

The chief trains NumPy arrays; the others wait. Journal and checkpoints are on a filesystem that all
machines see, and the machines' clocks are days apart.
"""

from __future__ import annotations

import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest

from procsv.base.run.paths import find_paths
from tests.support.launched import Launched
from tests.support.machines import Machines, machines
from tests.support.own_machines import OwnMachine
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault

PROGRAM = "from tests.support.numpy_training import train_chief\n\ntrain_chief()\n"
OPTIONS = ("--peer-timeout", "5", "--coordinator-timeout", "15", "--grace", "12", "--backoff", "0..0")
FOUND = {"PYTHONPATH": str(ROOT)}
NO_LOCKS = {**FOUND, "PROCSV_FAILPOINTS": "locks.directory=enolck"}  # as on a network filesystem without locks


def says(launch: Launched, text: str) -> bool:
    return text in launch.said()


def wait_trains(chief: Launched, launch: int = 1) -> None:
    """Wait until that start of the run has trained its first step."""
    chief.wait_event("run_started", launch)
    chief.wait_event("recovered", launch, "chief")
    chief.wait_step(chief.step() + 10)


def freeze_holder(launch: Launched, machine: OwnMachine) -> None:
    """Freeze its machine. By the filesystem's clock its lease is old, so that it is watched for a shorter time."""
    machine.send_signal(signal.SIGSTOP)
    launch.wait_for("its standstill", machine.stands_still)
    os.utime(find_paths(launch.logdir).lease, (0.0, 0.0))


def end(run: Machines) -> None:
    """Let the chief finish."""
    (run.logdir / "end").touch()


@pytest.mark.long
@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_row_66_a_machine_that_is_cut_off_is_replaced_and_what_still_runs_there_does_no_harm(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    tasks, (_, member, spare) = ("chief", "worker.0", "spare.0"), hosts
    options = (*OPTIONS, "--peer-timeout", "30", "--coordinator-timeout", "60", "--spare-nodes", "1")
    with machines(tmp_path, tasks, *options, program=PROGRAM, hosts=hosts, **FOUND) as run:
        chief = run.launch_all()
        wait_trains(chief)

        member.cut()  # less than half of the peer timeout: retransmission doubles the time
        chief.wait_step(chief.step() + 10)
        member.mend()
        chief.wait_step(chief.step() + 400)
        assert not chief.events("member_lost")

        member.cut()
        (lost,) = chief.wait_event("member_lost")
        wait_trains(chief, 2)
        assert (lost["role"], lost["host"], lost["spare"]) == ("worker.0", member.address, spare.address)
        assert chief.events("run_started")[1]["hosts"]["worker.0"] == spare.address
        member.mend()  # its task runs still, and its launch finds nobody
        assert run.launches["worker.0"].wait_end() == 75
        chief.wait_step(chief.step() + 50)
        end(run)

        assert run.codes() == {"chief": 0, "spare.0": 0, "worker.0": 75}
        (stopped,) = chief.events("stopped")
        assert chief.events("recovered", "chief")[-1]["step"] == stopped["durable_step"] == stopped["step"]
        assert len(chief.events("member_lost")) == 1
        assert chief.events("run_completed")


@pytest.mark.long
@pytest.mark.parametrize("hosts", [2], indirect=True)
@pytest.mark.parametrize("how", ["cut", "power"])
def test_row_67_without_a_spare_a_lost_machine_ends_the_run_with_its_state_saved_for_a_scheduler_to_restart(
    tmp_path: Path, hosts: list[OwnMachine], how: str
) -> None:
    with machines(tmp_path, ("chief", "worker.0"), *OPTIONS, program=PROGRAM, hosts=hosts, **FOUND) as run:
        chief = run.launch_all()
        wait_trains(chief)

        if how == "cut":
            hosts[1].cut()
        else:
            hosts[1].send_signal(signal.SIGKILL)
        assert chief.wait_end() == 75
        (stopped,) = chief.events("stopped")
        assert stopped["durable_step"] == stopped["step"] > 0
        assert run.launches["worker.0"].wait_end() == (75 if how == "cut" else -signal.SIGKILL)

        if how == "cut":
            hosts[1].mend()
        chief = run.launch_all()
        wait_trains(chief, 2)
        end(run)
        assert run.codes() == {"chief": 0, "worker.0": 0}
        assert chief.events("recovered", "chief")[-1]["step"] == stopped["step"]


@pytest.mark.long
@pytest.mark.parametrize("hosts", [4], indirect=True)
def test_row_68_a_frozen_coordinator_writes_nothing_after_the_scheduler_restarted_the_run_elsewhere(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    tasks = ("chief", "worker.0")
    with machines(tmp_path, tasks, *OPTIONS, program=PROGRAM, hosts=hosts[:2], **NO_LOCKS) as old:
        frozen = old.launch_all()
        wait_trains(frozen)
        freeze_holder(frozen, hosts[0])
        assert old.launches["worker.0"].wait_end() == 75

        options = (*OPTIONS, "--coordinator-timeout", "150")  # the lease alone is watched for a quarter of a minute
        with machines(tmp_path, tasks, *options, program=PROGRAM, hosts=hosts[2:], **NO_LOCKS) as new:
            chief = new.launch_all()
            wait_trains(chief, 2)
            assert chief.events("lease_taken_over")

            hosts[0].send_signal(signal.SIGCONT)
            assert frozen.wait_end() == 70
            assert " has taken " in frozen.said()

            chief.wait_step(chief.step() + 100)
            end(new)
            assert new.codes() == {"chief": 0, "worker.0": 0}

        events = chief.journal()
        began = next(number for number, entry in enumerate(events) if entry["event"] == "lease_taken_over")
        saved = [entry for entry in events[began:] if entry["event"] == "checkpoint_durable"]
        assert {entry["trainer"] for entry in saved} == {2}
        assert [entry["step"] for entry in saved] == sorted(entry["step"] for entry in saved)
        assert sorted(entry["role"] for entry in events[began:] if entry["event"] == "exited") == [
            "checkpoint",
            "chief",
            "summary",
            "worker.0",
        ]
        assert not {"stopped", "gave_up", "member_lost", "restarting"} & {entry["event"] for entry in events[began:]}
        newest = (tmp_path / "run" / "checkpoint").read_text().splitlines()[0]
        assert newest.endswith(f'-{saved[-1]["step"]}"')


@pytest.mark.long
@pytest.mark.parametrize("hosts", [4], indirect=True)
def test_members_of_a_frozen_coordinator_ignore_it_once_another_has_started_elsewhere(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    tasks, (here, _, server, elsewhere) = ("chief", "worker.0", "ps.0"), hosts
    options = (*OPTIONS, "--coordinator-timeout", "150", "--cluster", "slurm", "--workers", "1", "--ps", "1")
    with machines(tmp_path, tasks, *options, program=PROGRAM, hosts=hosts[:3], **NO_LOCKS) as run:
        frozen = run.launch_all()
        wait_trains(frozen)
        freeze_holder(frozen, here)
        server.send_signal(signal.SIGSTOP)  # the next coordinator waits for it
        run.move("chief", elsewhere)
        chief, worker = run.launch("chief"), run.launches["worker.0"]
        asked = f" on {elsewhere.address}: "
        worker.wait_for("word of the next one", partial(says, worker, asked))

        here.send_signal(signal.SIGCONT)  # it tells its members that the run is over
        assert frozen.wait_end() == 70
        server.send_signal(signal.SIGCONT)
        wait_trains(chief, 2)

        assert re.search(rf"all restart: chief is at {elsewhere.address} .* {here.address}", chief.said())
        assert not chief.events("adopted")
        end(run)
        assert run.codes() == dict.fromkeys(tasks, 0)


@pytest.mark.long
@pytest.mark.parametrize("hosts", [4], indirect=True)
def test_row_74_a_coordinator_that_is_cut_off_keeps_the_logdir_until_it_has_saved_and_the_next_loses_nothing(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    tasks, options = ("chief", "worker.0"), (*OPTIONS, "--peer-timeout", "40", "--coordinator-timeout", "60")
    with machines(tmp_path, tasks, *options, program=PROGRAM, hosts=hosts[:2], **FOUND) as old:
        cut_off = old.launch_all()
        wait_trains(cut_off)
        hosts[0].cut()

        with machines(tmp_path, tasks, *options, program=PROGRAM, hosts=hosts[2:], **FOUND) as new:
            new.launch_all()  # started by a scheduler that takes the first for lost; it trains and saves as usual
            assert new.codes() == {"chief": 73, "worker.0": 73}
            saved = cut_off.events("checkpoint_durable")[-1]["step"]
            cut_off.wait_for("a later checkpoint", lambda: cut_off.events("checkpoint_durable")[-1]["step"] > saved)
            assert cut_off.wait_end() == 75
            (stopped,) = cut_off.events("stopped")
            assert stopped["durable_step"] == stopped["step"]
            assert old.launches["worker.0"].wait_end() == 75  # it has waited for its coordinator for a while

            chief = new.launch_all()
            wait_trains(chief, 2)
            end(new)
            assert new.codes() == {"chief": 0, "worker.0": 0}

        assert chief.events("recovered", "chief")[-1]["step"] == stopped["step"]
        saved_by = [(entry["trainer"], entry["step"]) for entry in chief.events("checkpoint_durable")]
        assert saved_by == sorted(saved_by), "no checkpoint of the first is behind one of the second"
