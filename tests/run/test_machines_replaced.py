"""A launch on another machine may be killed and started again before the coordinator misses it.

In the first two tests the peer timeout is longer than the test, so nothing there can have waited
for it.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
from pathlib import Path

import psutil
import pytest

from procsv.base.run.paths import SHM_ROOT
from tests.run.test_machines_cut_off import FOUND, NO_LOCKS, PROGRAM, end, wait_trains
from tests.support.launched import Launched, procsv
from tests.support.machines import Machines, machines
from tests.support.own_machines import OwnMachine

pytestmark = pytest.mark.fault

TASKS = ("chief", "worker.0")
LONG = ("--peer-timeout", "600", "--coordinator-timeout", "900", "--grace", "12", "--backoff", "0..0")
STEP = ("--cluster", "slurm", "--workers", "1")  # here each launch picks its own address
SHORT = ("--peer-timeout", "10", "--coordinator-timeout", "60", "--grace", "12", "--backoff", "0..0")


def kill_launch(run: Machines, chief: Launched) -> int:
    """Kill the worker's launch, which ends its task. Return the launch's pid."""
    launch, task = run.launches["worker.0"].process, psutil.Process(chief.pid("worker.0"))
    launch.kill()
    launch.wait()
    assert not psutil.wait_procs([task], timeout=60)[1]
    return launch.pid


def memory_of(pid: int) -> Path:
    """Return the launch's own directory in shared memory."""
    opened = set[Path]()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            opened.add(fd.readlink())
    (memory,) = {path for path in opened if path.parent == SHM_ROOT and path.is_dir()}
    return memory


@pytest.mark.long
def test_row_80_the_next_launch_gets_the_task_at_once_and_no_other_task_ends(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, *LONG, program=PROGRAM, hosts=(), **FOUND) as run:
        chief = run.launch_all()
        wait_trains(chief)
        trains, first = chief.pid("chief"), chief.pid("worker.0")
        for number in (1, 2):
            killed = kill_launch(run, chief)

            run.launch("worker.0")

            replaced = chief.wait_event("member_replaced", number)[-1]
            assert (replaced["role"], replaced["before"]) == ("worker.0", killed)
            chief.wait_event("spawned", number + 1, "worker.0")
            exited = chief.events("exited", "worker.0")[-1]
            assert (exited["cause"], f"process {killed}" in exited["evidence"]) == ("lost-peer", True)
        chief.wait_step(chief.step() + 50)
        assert chief.pid("chief") == trains
        assert chief.pid("worker.0") != first
        assert len(chief.events("run_started")) == 1
        assert not {"member_lost", "stopped", "gave_up"} & {entry["event"] for entry in chief.journal()}
        end(run)
        assert run.codes() == dict.fromkeys(TASKS, 0)


@pytest.mark.long
def test_row_80_if_the_task_gets_another_address_all_tasks_restart_at_once_and_lose_no_step(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, *LONG, *STEP, program=PROGRAM, hosts=(), **FOUND) as run:
        chief = run.launch_all()
        wait_trains(chief)
        kill_launch(run, chief)

        run.launch("worker.0")

        (lost,) = chief.wait_event("member_lost")
        assert (lost["role"], lost["spare"]) == ("worker.0", lost["host"])
        wait_trains(chief, 2)
        (stopped,) = chief.events("stopped")
        assert chief.events("recovered", "chief")[-1]["step"] == stopped["durable_step"] == stopped["step"]
        end(run)
        assert run.codes() == dict.fromkeys(TASKS, 0)


@pytest.mark.long
@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_row_80_without_proof_of_death_the_next_launch_waits_says_so_and_gets_the_task_after_the_silence(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    here, there, elsewhere = hosts
    with machines(tmp_path, TASKS, *SHORT, *STEP, program=PROGRAM, hosts=(here, there), **NO_LOCKS) as run:
        chief = run.launch_all()
        wait_trains(chief)
        run.move("worker.0", elsewhere)

        again = run.launch("worker.0")

        again.wait_for("word of why it waits", lambda: "waiting to join" in again.said())
        assert not chief.events("member_lost")
        there.send_signal(signal.SIGKILL)
        (lost,) = chief.wait_event("member_lost")
        assert (lost["host"], lost["spare"]) == (there.address, elsewhere.address)
        assert lost["silent"] >= 10
        wait_trains(chief, 2)
        assert chief.events("run_started")[1]["hosts"]["worker.0"] == elsewhere.address
        assert not chief.events("member_replaced")
        end(run)
        assert run.codes() == dict.fromkeys(TASKS, 0)


def test_row_80_a_second_launch_of_a_living_task_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, *SHORT, program=PROGRAM, hosts=(), **FOUND) as run:
        chief = run.launch_all()
        wait_trains(chief)
        first = run.launches["worker.0"]

        second = run.launch("worker.0")

        assert second.wait_end() == 73
        assert f"process {first.process.pid}" in second.said()
        run.launches["worker.0"] = first
        chief.wait_step(chief.step() + 50)
        assert not {"member_lost", "member_replaced"} & {entry["event"] for entry in chief.journal()}
        end(run)
        assert run.codes() == dict.fromkeys(TASKS, 0)


@pytest.mark.long
def test_row_80_the_next_launch_of_any_run_removes_the_memory_of_a_killed_launch(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("")
    with (
        tempfile.TemporaryDirectory() as own,  # a killed launch leaves files there that its own next start would remove
        machines(tmp_path, TASKS, *SHORT, program=PROGRAM, hosts=(), **FOUND) as run,
    ):
        member = run.launch("worker.0", XDG_RUNTIME_DIR=own)
        chief = run.launch("chief")
        wait_trains(chief)
        memory = memory_of(member.process.pid)
        kill_launch(run, chief)
        chief.wait_event("member_lost")
        assert chief.wait_end() == 75

        done = procsv("launch", "--standby", "off", "--logdir", str(tmp_path / "other"), str(tmp_path / "other.py"))

        assert done.returncode == 0, done.stdout + done.stderr
        assert not memory.exists()
