"""`procsv drill --machines`: a launch for each task, and faults for machines; what each cost, and what cannot be had here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from procsv.base.cluster import list_tasks
from procsv.base.system.system_clock import SystemClock
from procsv.drill import networks
from procsv.drill.blows import find_blows, find_skipped
from procsv.drill.default_plan import plan_for_machines
from procsv.drill.launches import run_launches
from procsv.drill.machines import Machines, Place
from procsv.faults.plan_parser import parse_fault
from procsv.report.time_ledger import take_accounts
from procsv.testing.template.client import SESSION
from tests.support.launched import procsv
from tests.support.programs import ROOT

PROGRAM = """
import os, sys, threading
print("a fork:", "tensorflow" in sys.modules, flush=True)
if os.environ["PROCSV_TASK"] != "chief":
    threading.Event().wait()
from tests.support.numpy_training import main
main(int(sys.argv[1]), 0.02)
"""


def drill(directory: Path, *words: str, peer_timeout_s: int = 2, **env: str) -> dict[str, Any]:
    (directory / "train.py").write_text(PROGRAM)
    machines = ("--machines", "--workers", "1", "--peer-timeout", str(peer_timeout_s))
    options = (*machines, "--logdir", str(directory / "drill"), "--json")
    args = (*options, *words[:-1], str(directory / "train.py"), words[-1])
    done = procsv("drill", *args, timeout_s=500, template=True, **{"PYTHONPATH": str(ROOT), **env})
    assert done.returncode == 0, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.fault
def test_machines_that_die_stand_still_and_are_cut_off_leave_the_training_bit_identical(tmp_path: Path) -> None:
    if why := networks.why_no_networks():
        pytest.skip(why)

    # Nobody but those that are lost is silent for so long, on a busy machine, too; and a machine that is lost is noticed
    # before the next fault, which is seconds later.
    said = drill(tmp_path, "2000", peer_timeout_s=4)

    assert (said["held"], said["variables"], said["not_happened"], said["skipped"]) == (True, "identical", [], {})
    found = {
        (row["fault"].split(" at ")[0], row["task"]): (row["ended_trainer"], row["source"]) for row in said["faults"]
    }
    where = found["kill machine of chief", "chief"][1]
    assert where in ("memory", "checkpoint"), "the newer of what another machine keeps and the logdir has"
    assert found == {
        ("kill chief", "chief"): (True, "memory"),
        ("kill worker.0", "worker.0"): (True, ""),  # it trains nothing
        ("kill machine of worker.0", "worker.0"): (True, "checkpoint"),
        ("stop machine of worker.0 for 1.2s", "worker.0"): (False, ""),
        ("cut machine of worker.0 for 8s", "worker.0"): (True, "checkpoint"),
        ("kill machine of chief", "chief"): (True, where),
    }
    # A spare launch has taken the place of the killed one; then none was left, and the drill has started all again.
    assert said["drilled"]["exit_codes"] == [75, -9, 0]
    assert all(row["down_s"] >= 4 for row in said["faults"] if row["ended_trainer"] and "worker.0 for" in row["fault"])
    for task in ("chief", "worker.0"):  # each has a template of its own network
        first = tmp_path / "drill" / "drilled" / "procsv" / "logs" / f"{task}.1.log"
        assert f"a fork: {SESSION.is_on}" in first.read_text()


def test_networks_of_their_own_have_an_address_each_and_nothing_is_left_of_them() -> None:
    if why := networks.why_no_networks():
        pytest.skip(why)
    with networks.own_networks(2) as (first, second):
        names = {first.name, second.name}
        assert names <= named_networks()
        seen = subprocess.run(
            [*first.launcher, "ip", "route", "get", second.address], check=True, capture_output=True, text=True
        )
        assert f"{second.address} dev eth0 src {first.address}" in seen.stdout
    assert not names & named_networks()


def named_networks() -> set[str]:
    shown = subprocess.run(["ip", "netns"], check=True, capture_output=True, text=True).stdout
    return {line.split()[0] for line in shown.splitlines()}


@pytest.mark.fault
def test_without_networks_of_their_own_machines_are_killed_and_cuts_are_skipped_which_is_said(tmp_path: Path) -> None:
    faults = ("--fault", "cut machine of worker.0 for 9s at step 40", "--fault", "kill machine of worker.0 at step 60")

    said = drill(tmp_path, *faults, "400", PATH="/nowhere")

    assert said["held"]
    assert [(row["fault"], row["ended_trainer"]) for row in said["faults"]] == [(faults[3], True)]
    assert "it takes a network namespace with a name" in said["skipped"][faults[1]]
    assert not said["not_happened"]


def test_a_training_of_one_task_has_no_machines_to_drill(tmp_path: Path) -> None:
    done = procsv("drill", "--machines", "--logdir", str(tmp_path), "train.py")
    assert done.returncode == 2
    assert "say how many with --workers and --ps" in done.stderr


STAND_IN = """
import json, os, signal, sys, threading
task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
if task == "worker":
    print("there is no such thing")
    sys.exit(2 if sys.argv[1] == "refused" else 75)
threading.Event().wait(None if sys.argv[1] == "refused" else 0.1)
os.kill(os.getpid(), signal.SIGKILL)
"""  # of a launch: the worker's is refused, or ends; the chief's waits for it, or is killed


@pytest.mark.parametrize(("how", "code"), [("refused", 2), ("killed", -9)])
def test_a_launch_that_is_refused_ends_all_and_is_what_is_said_of_them(tmp_path: Path, how: str, code: int) -> None:
    chief, worker = list_tasks(1, 0, 0)
    machines = Machines({task: Place("127.0.0.1") for task in (chief, worker)}, {})
    output = tmp_path / "drilled.out"

    ended = run_launches([sys.executable, "-c", STAND_IN, how], output, None, machines, SystemClock(), lambda: None)

    assert ended == code
    assert ("there is no such thing" in output.read_text()) is (how == "refused")
    assert (tmp_path / "drilled.worker.0.out").exists()


def test_the_default_plan_kills_a_task_of_each_kind_and_has_a_row_for_what_befalls_a_machine() -> None:
    plan = plan_for_machines(1000, ("chief", "worker.0", "worker.1", "ps.0"), 10.0)
    assert [str(fault) for fault in plan.faults] == [
        "kill chief at step 100",
        "kill worker.1 at step 200",
        "kill ps.0 at step 300",
        "kill machine of worker.1 at step 400",
        "stop machine of worker.1 for 3s at step 550",
        "cut machine of worker.1 for 20s at step 700",
        "kill machine of chief at step 850",
    ]


KILL, STOP, CUT = (
    "kill machine of worker.0 at step 50",
    "stop machine of worker.0 for 1s at step 70",
    "cut machine of worker.0 for 9s at step 80",
)


def _at(time: float, event: str, role: str, incarnation: int = 1, **fields: Any) -> dict[str, Any]:
    return {"time": 1000.0 + time, "event": event, "role": role, "incarnation": incarnation, **fields}


def _start(time: float, number: int, step: int, source: str) -> list[dict[str, Any]]:
    return [
        _at(time, "run_started", "watchdog", tasks=("chief", "worker.0")),
        *(_at(time + 1, "spawned", task, number, pid=number) for task in ("chief", "worker.0")),
        _at(time + 2, "ready", "chief", number, step=step + 1),
        _at(time + 2, "recovered", "chief", number, step=step, source=source, seconds=2.0),
        _at(time + 3, "ready", "worker.0", number, step=step + 2),
        _at(time + 3, "recovered", "worker.0", number, step=step, source="chief", seconds=3.0),
    ]


def test_a_fault_of_a_machine_costs_what_follows_its_loss_and_one_that_is_not_lost_costs_nothing() -> None:
    stopped: dict[str, Any] = {"code": 75, "signal": None, "cause": "stopped", "evidence": ""}
    lost: dict[str, Any] = {"code": None, "signal": None, "cause": "lost-peer", "evidence": ""}
    account, tasks = take_accounts([
        *_start(0, 1, 0, "fresh"),
        _at(20, "fault", "worker.0", fault=KILL, step=50),
        _at(30, "member_lost", "worker.0", host="n2", silent=10.0, spare="n3"),
        _at(30, "exited", "worker.0", step=55, **lost),
        _at(31, "exited", "chief", step=60, **stopped),
        _at(31, "stopped", "chief", step=60, durable_step=60),
        *_start(32, 2, 60, "checkpoint"),
        _at(50, "fault", "worker.0", 2, fault=STOP, step=70),
        _at(55, "fault_skipped", "worker.0", 2, fault=CUT, why="no network"),
        _at(70, "exited", "chief", 2, step=100, **{**stopped, "code": 0, "cause": "completed"}),
        _at(71, "run_completed", "chief", 2, step=100, goodput=0.5),
    ])  # fmt: skip
    assert account is not None

    (killed, still), missed = find_blows(account, tuple(map(parse_fault, (KILL, STOP, CUT))), tasks)

    assert (killed.task, killed.ended_trainer, killed.lost_steps, killed.source) == ("worker.0", True, 0, "checkpoint")
    assert killed.down_s == 15.0, "from the fault to the first step of the task that its machine had"
    assert (still.ended_trainer, still.down_s) == (False, 0.0)
    assert missed == []
    assert find_skipped(account) == {CUT: "no network"}
