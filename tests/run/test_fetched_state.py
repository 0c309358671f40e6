"""A task on another machine restores from the chief's memory, or from the checkpoint where that fails."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.placement import Placement
from procsv.base.run.paths import find_paths
from procsv.base.run.run_id import make_id
from procsv.ipc.messaging.start import Start
from procsv.watchdog.machines.member import with_own_directories
from tests.run import test_gang
from tests.run.test_machines_adopted import kill_machine
from tests.support.launched import Launched
from tests.support.machines import machines

pytestmark = pytest.mark.fault

GANG = ("worker.0", "worker.1")
OPTIONS = ("--workers", "2", "--no-chief", "--snapshot-secs", "0.2")


def wait_in_memory(run: Launched, step: int) -> None:
    run.wait_for(
        "a snapshot", lambda: json.loads((run.logdir / "procsv" / "run.json").read_text())["memory_step"] > step
    )


def sources(run: Launched, task: str) -> list[str]:
    return [entry["source"] for entry in run.events("recovered", task)]


@pytest.mark.long
def test_a_task_on_another_machine_restores_without_a_checkpoint(tmp_path: Path) -> None:
    stuck = f"checkpoint.before_ack=1*await({tmp_path}/open)"  # the disk, in the first save
    with machines(tmp_path, GANG, *OPTIONS, program=test_gang.ARRAYS, PROCSV_FAILPOINTS=stuck) as run:
        chief = run.launch_all()
        chief.wait_event("gang_formed")
        wait_in_memory(chief, 0)

        chief.kill("worker.1")

        chief.wait_event("gang_formed", 2)
        assert [sources(chief, task) for task in GANG] == [["fresh", "memory"]] * 2
        assert not chief.events("checkpoint_durable")
        (fetched,) = chief.events("state_fetched", "worker.1")
        assert fetched["step"] == chief.events("gang_formed")[-1]["step"] > 0
        (tmp_path / "open").touch()
        assert run.codes() == dict.fromkeys(GANG, 0)
        assert len(test_gang.variables_of(chief)) == 1


@pytest.mark.long
def test_row_77_a_transfer_that_is_damaged_or_stops_midway_is_replaced_by_the_checkpoint(tmp_path: Path) -> None:
    faults = "sender.piece=1*torn->1*kill"
    with machines(tmp_path, GANG, *OPTIONS, program=test_gang.ARRAYS, PROCSV_FAILPOINTS=faults) as run:
        chief = run.launch_all()
        chief.wait_event("gang_formed")
        for generation, killed in enumerate(("worker.1", "worker.0"), 2):
            test_gang.wait_snapshot(chief)
            chief.kill(killed)
            chief.wait_event("gang_formed", generation)
        (tmp_path / "open").touch()

        assert run.codes() == dict.fromkeys(GANG, 0)
        assert len(test_gang.variables_of(chief)) == 1
        assert sources(chief, "worker.1") == ["fresh", "checkpoint", "checkpoint"]
        whys = [entry["why"] for entry in chief.events("state_not_fetched", "worker.1")]
        assert ["damaged" in whys[0], "for 5 s" in whys[1], len(whys)] == [True, True, 2]
        assert not chief.events("state_fetched")
        assert chief.events("service_restarted")
        said = run.launches["worker.1"].said()
        assert said.count("worker.1 starts from ") == 1


@pytest.mark.long
def test_row_77_no_task_starts_from_half_a_transfer_of_a_coordinator_whose_machine_died(
    tmp_path: Path,
) -> None:
    timeouts = ("--peer-timeout", "5", "--grace", "10", "--coordinator-timeout", "90")
    with machines(tmp_path, GANG, *OPTIONS, *timeouts, program=test_gang.ARRAYS) as run:
        run.launch("worker.1")
        chief = run.launch("worker.0", PROCSV_FAILPOINTS="sender.piece=1*stop")
        chief.wait_event("gang_formed")
        wait_in_memory(chief, 0)
        chief.kill("worker.1")
        service = psutil.Process(chief.pid("checkpoint"))
        chief.wait_for("its stop in the middle", lambda: service.status() == psutil.STATUS_STOPPED)
        kill_machine(chief)
        formed = len(chief.events("gang_formed"))

        again = run.launch("worker.0")

        again.wait_event("run_started", 2)
        again.wait_event("gang_formed", formed + 1)
        assert not again.events("adopted"), "they train in step"
        began = again.events("gang_formed")[-1]["step"]
        assert {entry["step"] for task in GANG for entry in again.events("recovered", task)[-1:]} == {began}
        (tmp_path / "open").touch()
        assert run.codes() == dict.fromkeys(GANG, 0)
        assert len(test_gang.variables_of(again)) == 1


@pytest.mark.long
def test_the_next_launch_removes_what_a_killed_launch_had_fetched(tmp_path: Path) -> None:
    with machines(tmp_path, ("chief", "worker.0")) as run:
        make_id(run.logdir / "procsv")
        places, worker = find_paths(run.logdir), TaskId("worker", 0)
        placement = Placement(
            kind="tf-config",
            rank=1,
            ranks=2,
            launch=worker,
            task=worker,
            tasks=tuple(run.tasks),
            scheduler="",
            host="",
            addresses=None,
            coordinator=None,
        )
        start = Start(WATCHDOG, "", 1, str(run.logdir), str(places.run_dir), str(places.shm_dir))
        shm = with_own_directories(start, placement).paths.shm_dir
        shm.mkdir(0o700)
        left = [shm / "slot.chief.1.fetched", shm / ".slot.0123abcd.new"]
        for path in left:
            path.write_bytes(b"left")

        chief = run.launch_all()

        chief.wait_event("spawned", 1, "worker.0")
        assert not [path for path in left if path.exists()]
        (run.logdir / "end").touch()
        assert run.codes() == {"chief": 0, "worker.0": 0}
        assert not shm.exists()
