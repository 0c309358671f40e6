"""Tasks that outlive the coordinator's machine continue when the coordinator comes back."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.support.launched import Launched, procsv
from tests.support.machines import WAITS, Machines, machines

pytestmark = pytest.mark.fault

TASKS = ("chief", "worker.0", "ps.0")
OTHERS = ("worker.0", "ps.0")
REPLICAS = ("procsv.examples.replicas", "--steps", "1000000", "--step-ms", "50")
ARRAYS = """
from tests.support.numpy_training import train_replicas

train_replicas(save_s=1.0)
"""  # the same without TensorFlow; here the chief holds the state instead of the servers
STOPPED = dict.fromkeys(TASKS, 75)
OPTIONS = ("--peer-timeout", "5", "--grace", "10", "--coordinator-timeout", "300")


NOTES = """
import json, os, pathlib
config = json.loads(os.environ["TF_CONFIG"])["cluster"]
name = "cluster." + os.environ["PROCSV_TASK"] + "." + os.environ["PROCSV_INCARNATION"]
draft = pathlib.Path(os.environ["PROCSV_LOGDIR"], name + ".new")
draft.write_text(json.dumps(config))
draft.rename(draft.with_suffix(""))
"""  # the addresses at which each attempt finds the others


def kill_machine(launch: Launched) -> None:
    """End everything on that machine at once, as a power loss does."""
    watchdog, everything = psutil.Process(launch.process.pid), list[psutil.Process]()
    more = [watchdog]
    while more:  # the first process, then those it started before it was frozen
        for process in more:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended by itself
                process.suspend()  # frozen first, so that none sees another's end
        everything += more
        more = [process for process in watchdog.children(recursive=True) if process not in everything]
    for process in everything:
        with contextlib.suppress(psutil.NoSuchProcess):  # it went with the watchdog
            process.kill()
    launch.wait_end()
    psutil.wait_procs(everything, timeout=60)


def wait_training(chief: Launched, launch: int = 1) -> None:
    """Wait until that start of the run has trained some steps."""
    chief.wait_event("run_started", launch)
    chief.wait_event("recovered", launch, "chief")
    chief.wait_step(chief.step() + 20)


def programs(chief: Launched, tasks: tuple[str, ...] = OTHERS) -> dict[str, psutil.Process]:
    return {task: psutil.Process(chief.pid(task)) for task in tasks}


def says(launch: Launched, text: str) -> bool:
    return text in launch.said()


def cluster_of(run: Machines, attempt: str) -> dict[str, list[str]]:
    """Return the cluster that the attempt was given."""
    found: dict[str, list[str]] = json.loads((run.logdir / f"cluster.{attempt}").read_text())
    return found


@pytest.mark.long
def test_row_70_tasks_that_outlive_their_coordinator_are_adopted_and_no_step_is_lost(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, *OPTIONS, "--snapshot-secs", "0", target=REPLICAS) as run:
        chief = run.launch_all()
        chief.wait_event("recovered", 1, "worker.0")
        wait_training(chief)
        tasks = programs(chief)
        kill_machine(chief)
        before = chief.step()

        again = run.launch("chief")

        again.wait_event("recovered", 2, "chief")
        adopted = again.events("adopted")
        assert {entry["role"]: entry["pid"] for entry in adopted} == {task: one.pid for task, one in tasks.items()}
        assert {(entry["incarnation"], entry["host"]) for entry in adopted} == {(1, "127.0.0.1")}
        recovered = again.events("recovered", "chief")[-1]
        assert (recovered["source"], recovered["step"] >= before) == ("alive", True)
        assert again.lost_steps() == 0
        again.wait_step(recovered["step"] + 20)
        assert all(one.is_running() for one in tasks.values())
        assert len(again.events("spawned", "worker.0")) == len(again.events("spawned", "ps.0")) == 1

        again.kill("worker.0")  # it is watched as before
        again.wait_event("recovered", 2, "worker.0")
        (exited,) = again.events("exited", "worker.0")
        assert (exited["incarnation"], exited["cause"]) == (1, "killed")
        assert again.events("spawned", "worker.0")[-1]["incarnation"] == 2
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.codes() == STOPPED


@pytest.mark.long
def test_row_70_the_next_launch_adopts_the_tasks_of_a_killed_one(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, *OPTIONS, program=ARRAYS) as run:
        chief = run.launch_all()
        chief.wait_event("recovered", 1, "worker.0")
        wait_training(chief)
        tasks, task = programs(chief), psutil.Process(chief.pid("chief"))
        chief.process.kill()
        assert not psutil.wait_procs([task], timeout=60)[1], "it saves, and ends by itself"
        before = chief.step()

        again = run.launch("chief")

        wait_training(again, 2)
        assert again.events("recovered", "chief")[-1]["step"] >= before
        assert {entry["role"]: entry["pid"] for entry in again.events("adopted")} == {
            task: one.pid for task, one in tasks.items()
        }
        assert len(again.events("spawned", "worker.0")) == len(again.events("spawned", "ps.0")) == 1
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.codes() == STOPPED


@pytest.mark.long
def test_row_70_a_coordinator_lost_before_all_have_joined_leaves_everything_to_the_next_one(
    tmp_path: Path,
) -> None:
    with machines(tmp_path, TASKS, *OPTIONS, program=ARRAYS) as run:
        chief = run.launch_all()
        chief.wait_event("recovered", 1, "worker.0")
        wait_training(chief)
        tasks = programs(chief)
        kill_machine(chief)
        late = run.launches["worker.0"]
        late.process.send_signal(signal.SIGSTOP)  # it comes too late for the second
        second = run.launch("chief")
        asks, server = " with ps.0", run.launches["ps.0"]
        server.wait_for("word of the second", partial(says, server, asks))
        second.wait_for("word of who is missing", partial(says, second, "launches of worker.0"))
        tasks["worker.0"].kill()  # and its task ends by itself meanwhile
        kill_machine(second)
        late.process.send_signal(signal.SIGCONT)

        third = run.launch("chief")

        wait_training(third, 2)
        (adopted,) = third.events("adopted")
        assert (adopted["role"], adopted["pid"]) == ("ps.0", tasks["ps.0"].pid)
        assert tasks["ps.0"].is_running()
        third.wait_event("recovered", 2, "worker.0")
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.codes() == STOPPED


@pytest.mark.long
def test_row_70_if_a_server_is_lost_as_well_all_tasks_restart_from_the_saved_state(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, *OPTIONS, program=ARRAYS) as run:
        chief = run.launch_all()
        chief.wait_event("recovered", 1, "worker.0")
        wait_training(chief)
        chief.wait_event("checkpoint_durable", 2)
        tasks = programs(chief)
        for task in ("chief", "ps.0"):
            kill_machine(run.launches[task])
        saved = chief.events("checkpoint_durable")[-1]["step"]

        run.launch("ps.0")
        again = run.launch("chief")

        wait_training(again, 2)
        assert "all restart: ps.0 has ended" in again.said()
        assert re.search(r"\(ps\.0 has ended.*\); worker\.0 restarts", run.launches["worker.0"].said())
        assert not again.events("adopted")
        assert not tasks["worker.0"].is_running()
        recovered = again.events("recovered", "chief")[-1]
        assert recovered["source"] == "memory", "of the chief's machine, which has not really lost it"
        assert recovered["step"] >= saved
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.codes() == STOPPED


@pytest.mark.long
def test_row_70_an_adopted_task_restarts_from_the_standby_that_its_machine_had_made(tmp_path: Path) -> None:
    options = ("--standby", "warm")
    with machines(tmp_path, TASKS, *OPTIONS, *options, program=ARRAYS) as run:
        chief = run.launch_all()
        (waits,) = chief.wait_event("standby_ready", 1, "worker.0")
        wait_training(chief)
        tasks = programs(chief)
        kill_machine(chief)

        again = run.launch("chief")

        again.wait_event("ready", 2, "chief")
        assert {entry["role"]: entry["pid"] for entry in again.events("adopted")} == {
            task: one.pid for task, one in tasks.items()
        }
        again.kill("worker.0")
        (promoted,) = again.wait_event("promoted", 1, "worker.0")
        again.wait_event("ready", 2, "worker.0")
        assert (promoted["incarnation"], promoted["pid"]) == (2, again.pid("worker.0"))
        assert psutil.Process(promoted["pid"]).ppid() in (waits["pid"], run.launches["worker.0"].process.pid)
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.codes() == STOPPED


@pytest.mark.long
def test_tasks_taken_over_by_a_spare_machine_are_adopted_where_they_are(tmp_path: Path) -> None:
    tasks, options = (*TASKS, "spare.0"), ("--spare-nodes", "1")
    with machines(tmp_path, tasks, *OPTIONS, *options, program=ARRAYS) as run:
        chief = run.launch_all()
        wait_training(chief)
        silent = run.launches["worker.0"]
        silent.process.send_signal(signal.SIGSTOP)
        chief.kill("worker.0")  # as all that runs on that machine
        wait_training(chief, 2)
        before = programs(chief)
        kill_machine(chief)

        again = run.launch("chief")

        wait_training(again, 3)
        assert {entry["role"]: entry["pid"] for entry in again.events("adopted")} == {
            task: one.pid for task, one in before.items()
        }
        assert before["worker.0"].ppid() == run.launches["spare.0"].process.pid
        silent.process.send_signal(signal.SIGCONT)
        assert silent.wait_end() == 75
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.codes() == {**STOPPED, "spare.0": 75}


@pytest.mark.long
@pytest.mark.parametrize("is_taken", [False, True])
def test_a_chief_without_a_given_address_reuses_its_old_one_or_all_tasks_restart_at_new_ones(
    tmp_path: Path, is_taken: bool
) -> None:
    options = ("--cluster", "slurm", "--workers", "1", "--ps", "1")
    with machines(tmp_path, TASKS, *OPTIONS, *options, program=NOTES + WAITS) as run:
        chief = run.launch_all()
        tasks = programs(chief)
        for attempt in ("chief.1", "worker.0.1", "ps.0.1"):
            chief.wait_for(f"its start ({attempt})", (run.logdir / f"cluster.{attempt}").exists)
        address, port = cluster_of(run, "chief.1")["chief"][0].split(":")
        kill_machine(chief)
        with socket.socket() as other:
            if is_taken:
                other.bind((address, int(port)))
            again = run.launch("chief")
            again.wait_for("its start", (run.logdir / "cluster.chief.2").exists)

        now, before = cluster_of(run, "chief.2"), cluster_of(run, "worker.0.1")
        if is_taken:
            assert f"all restart: the others know chief at {address}:{port}: " in again.said()
            again.wait_for("its start", (run.logdir / "cluster.worker.0.2").exists)
            assert now == cluster_of(run, "worker.0.2") != before
            assert not again.events("adopted")
        else:
            assert now == before
            assert {entry["role"] for entry in again.events("adopted")} == set(OTHERS)
        assert [one.is_running() for one in tasks.values()] == [not is_taken] * len(OTHERS)
        (run.logdir / "end").touch()
        assert run.codes() == dict.fromkeys(TASKS, 0)
