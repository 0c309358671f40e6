"""SIGTERM to one process, to all in any order, or twice, does what the table in
docs/command-line.md says.

Without TensorFlow: the chief trains arrays, and the worker is in a step when it is signalled.
test_signals_to_servers.py has servers that hold variables.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from tests.run import test_gang
from tests.support.launched import Launched, launched
from tests.support.machines import Machines, machines
from tests.support.replicas import IN_STEP_S, text_of

pytestmark = pytest.mark.fault

ARRAYS = f"from tests.support.numpy_training import train_replicas\n\ntrain_replicas(step_s={IN_STEP_S})\n"
TASKS = ("--workers", "1", "--ps", "1", "--evaluators", "1", "--grace", "60s")
# What a process signalled alone does: end at its step and restart, or nothing.
AGAIN, STAYS = ("worker.0", "evaluator.0", "chief"), ("ps.0", "checkpoint", "summary")


def send(pids: Iterable[int], times: int = 1) -> None:
    for pid in [pid for pid in pids for _ in range(times)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def processes(run: Launched) -> dict[str, int]:
    return {one["role"]: one["pid"] for one in run.status()["processes"] if one["pid"]}


def ends(run: Launched) -> list[str]:
    """Return the tasks in the order of their last ends."""
    roles = [
        entry["role"] for entry in run.events("exited") if entry["role"] not in ("standby", "checkpoint", "summary")
    ]
    return [role for number, role in enumerate(roles) if role not in roles[number + 1 :]]


def check_end(run: Launched) -> int:
    """Check that the run was stopped with its last step on disk. Return that step."""
    assert run.wait_end() == 75
    (stopped,) = run.events("stopped")
    assert stopped["durable_step"] == stopped["step"] > 0
    assert not run.events("gave_up")
    return int(stopped["step"])


@pytest.mark.long
def test_each_process_signalled_alone_or_twice_ends_at_its_step_and_restarts_or_continues(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(ARRAYS)
    with launched(tmp_path / "run", *TASKS, "train.py", cwd=tmp_path, standby=None) as run:
        for task in ("chief", "worker.0"):
            run.wait_event("recovered", 1, task)
        run.wait_event("standby_ready", 1)
        pids = processes(run)
        for role in STAYS:
            send([pids[role]], 2)
        run.wait_for("the server's word", lambda: text_of(run, "ps.0").count("until its watchdog "))
        for role in AGAIN:
            send([pids[role]], 2)
            run.wait_event("spawned", 2, role)
            (ended,) = run.events("exited", role)
            assert ended["code"] == 75, role
            assert run.events("restarting", role)[0]["delay"] == 0.0
        run.wait_event("recovered", 2, "chief")
        assert run.events("recovered", "chief")[1]["step"] == run.events("exited", "chief")[0]["step"] > 0
        assert {role: psutil.pid_exists(pids[role]) for role in STAYS} == dict.fromkeys(STAYS, True)
        assert not [role for role in STAYS if run.events("exited", role)]
        run.wait_event("recovered", 2, "worker.0")
        send([pids["standby"], run.process.pid], 2)
        check_end(run)
        assert run.events("exited", "standby")


@pytest.mark.parametrize("first", ["tasks", "twice", pytest.param("launch", marks=pytest.mark.long)])
def test_processes_signalled_together_end_in_order_whichever_gets_the_signal_first(tmp_path: Path, first: str) -> None:
    (tmp_path / "train.py").write_text(ARRAYS)
    with launched(tmp_path / "run", *TASKS, "train.py", cwd=tmp_path) as run:
        for task in ("chief", "worker.0"):
            run.wait_event("recovered", 1, task)
        run.wait_step(10)
        pids = sorted(processes(run).values(), key=lambda pid: (pid == run.process.pid) != (first != "tasks"))
        send(pids, 2 if first == "twice" else 1)
        check_end(run)
        assert {entry["code"] for entry in run.events("exited")} <= {0, 75}
        order = ends(run)
        assert order.index("worker.0") < order.index("chief") < order.index("ps.0"), order


def test_when_a_whole_gang_is_signalled_the_chief_saves_before_the_others_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(test_gang.ARRAYS)
    with launched(tmp_path / "run", *test_gang.OPTIONS, "train.py", cwd=tmp_path) as run:
        run.wait_event("gang_formed")
        run.wait_step(10)
        pids = processes(run)
        send([pids["worker.1"]], 2)
        run.wait_for("its word", lambda: "in step with " in text_of(run, "worker.1"))
        assert not run.events("exited")
        send(pids.values())
        check_end(run)
        assert ends(run) == ["worker.0", "worker.1"]


def tree(run: Machines) -> list[int]:
    """Return every process of every launch, the launches first."""
    launches = [psutil.Process(launch.process.pid) for launch in run.launches.values()]
    return [one.pid for one in (*launches, *(child for one in launches for child in one.children(recursive=True)))]


@pytest.mark.long
@pytest.mark.parametrize("first", ["launches", "tasks"])
def test_all_processes_of_all_launches_end_in_order_and_no_spare_steps_in(tmp_path: Path, first: str) -> None:
    launches = ("chief", "worker.0", "ps.0", "spare.0")
    with machines(tmp_path, launches, "--spare-nodes", "1", "--grace", "60s", program=ARRAYS) as run:
        chief = run.launch_all()
        for task in ("chief", "worker.0"):
            chief.wait_event("recovered", 1, task)
        chief.wait_event("spawned", 1, "ps.0")
        chief.wait_step(10)
        pids = tree(run)
        send(pids if first == "launches" else reversed(pids), 2)
        assert run.codes() == dict.fromkeys(launches, 75)
        check_end(chief)
        assert ends(chief) == ["worker.0", "chief", "ps.0"]
