"""One launch for each task, as on several machines, makes one run with one journal and one end."""

from __future__ import annotations

import re
import signal
import stat
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.run import test_gang
from tests.support.launched import Launched, launched, procsv
from tests.support.machines import Machines, machines
from tests.support.replicas import wait_for_memory

pytestmark = pytest.mark.fault

TASKS = ("chief", "worker.0", "ps.0")
REPLICAS = ("procsv.examples.replicas", "--steps", "1000000", "--step-ms", "50")
ARRAYS = ("tests.support.numpy_training:train_replicas",)  # without TensorFlow, for tests that do not need it
STOPPED = dict.fromkeys(TASKS, 75)


def programs(run: Machines) -> dict[str, psutil.Process]:
    """Wait until every task runs. Return their processes."""
    chief = run.launches["chief"]
    return {task: psutil.Process(chief.pid(task)) for task in TASKS}


def wait_until_gone(processes: dict[str, psutil.Process]) -> None:
    _, alive = psutil.wait_procs(list(processes.values()), timeout=60)
    assert not alive


def says(launch: Launched, text: str) -> bool:
    return text in launch.said()


def printed_by(logdir: Path) -> set[str]:
    """Return the tasks that `procsv logs --node` prints."""
    logs = procsv("logs", str(logdir), "--node", "127.0.0.1").stdout
    return {line.split()[0] for line in logs.splitlines() if "│" in line}


@pytest.mark.long
def test_a_task_that_dies_is_restarted_by_its_own_launch_and_the_others_train_on(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, "--snapshot-secs", "0.2", target=REPLICAS) as run:
        chief = run.launch_all()
        for task in ("chief", "worker.0"):
            chief.wait_event("recovered", 1, task)
        assert psutil.Process(chief.pid("worker.0")).ppid() == run.launches["worker.0"].process.pid
        assert chief.events("run_started")[0]["hosts"] == dict.fromkeys(TASKS, "127.0.0.1")

        chief.kill("worker.0")
        chief.wait_event("recovered", 2, "worker.0")
        chief.kill("chief")
        chief.wait_event("recovered", 2, "chief")
        assert [entry["source"] for entry in chief.events("recovered", "worker.0")] == ["chief", "chief"]
        assert [entry["source"] for entry in chief.events("recovered", "chief")] == ["fresh", "alive"]
        chief.kill("ps.0")
        chief.wait_event("session_recovered", 1, "chief")
        assert chief.events("session_recovered", "chief")[0]["source"] == "memory"
        assert not chief.events("captured_by_chief"), "servers of other machines are not asked"
        assert [row["host"] for row in chief.status()["tasks"]] == ["127.0.0.1"] * 3
        shown = procsv("status", str(run.logdir)).stdout
        assert len(re.findall(r"^(?:chief|worker\.0|ps\.0) +127\.0\.0\.1 ", shown, re.MULTILINE)) == 3
        chief.wait_for("what it printed of its lost session", lambda: "chief" in printed_by(run.logdir))
        assert printed_by(run.logdir) <= set(TASKS)
        assert "its machines are 127.0.0.1" in procsv("logs", str(run.logdir), "--node", "n7").stderr

        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.codes() == STOPPED
        (stopped,) = chief.events("stopped")
        assert stopped["durable_step"] == stopped["step"] > 0


def test_a_task_on_another_machine_restarts_from_its_own_standby(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, "--standby", "warm", target=ARRAYS) as run:
        chief = run.launch_all()
        (ready,) = chief.wait_event("standby_ready", 1, "worker.0")
        chief.wait_event("recovered", 1, "worker.0")  # either may come first
        member = run.launches["worker.0"].process.pid
        assert psutil.Process(ready["pid"]).ppid() == member

        chief.kill("worker.0")

        (promoted,) = chief.wait_event("promoted", 1, "worker.0")
        chief.wait_event("recovered", 2, "worker.0")
        assert promoted["pid"] == chief.pid("worker.0")
        assert (run.logdir / "procsv" / "logs" / "standby-worker.0.1.log").exists()
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.codes() == STOPPED
        assert not psutil.pid_exists(ready["pid"])


@pytest.mark.long
def test_tasks_in_step_restart_with_one_state_that_other_machines_fetch_from_memory(
    tmp_path: Path,
) -> None:
    gang = ("worker.0", "worker.1")
    options = ("--workers", "2", "--no-chief", "--snapshot-secs", "0.2", "--spare-nodes", "1", "--peer-timeout", "5")
    with machines(tmp_path, (*gang, "spare.0"), *options, program=test_gang.PROGRAM) as run:
        chief = run.launch_all()
        chief.wait_event("gang_formed")
        for generation, killed in enumerate(("worker.1", "worker.0"), 2):
            test_gang.wait_snapshot(chief)
            chief.kill(killed)
            chief.wait_event("gang_formed", generation)
        silent = run.launches["worker.1"]  # its machine is lost, and the spare takes its task
        silent.process.send_signal(signal.SIGSTOP)
        chief.kill("worker.1")
        chief.wait_event("gang_formed", 4)
        silent.process.send_signal(signal.SIGCONT)
        silent.process.send_signal(signal.SIGTERM)
        (tmp_path / "open").touch()

        assert run.codes() == {"worker.0": 0, "worker.1": 75, "spare.0": 0}
        first, *others = test_gang.variables_of(chief)
        assert (bool(first), others) == (True, []), "both have the same bits"
        ours, theirs = (chief.events("recovered", task) for task in gang)
        assert [entry["source"] for entry in ours] == ["fresh", "memory", "memory", "checkpoint"]
        assert [entry["source"] for entry in theirs] == ["fresh", "memory", "memory", "checkpoint"]
        assert [entry["step"] for entry in theirs] == [entry["step"] for entry in ours]
        fetched = chief.events("state_fetched", "worker.1")
        assert [entry["step"] for entry in fetched] == [entry["step"] for entry in theirs[1:3]]
        assert all(entry["bytes"] > 8000 for entry in fetched)
        assert {Path(entry["from"]).name for entry in theirs[1:3]} == {
            "slot.worker.0.1.fetched",
            "slot.worker.0.2.fetched",
        }
        assert not chief.events("state_not_fetched")


def test_all_launches_end_with_the_chief_and_with_its_exit_code(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS) as run:
        chief = run.launch_all()
        tasks = programs(run)
        (term,) = (run.logdir / "procsv" / "group").glob("term-*.json")
        assert stat.S_IMODE(term.stat().st_mode) == 0o600
        assert stat.S_IMODE(term.parent.stat().st_mode) == 0o700

        (run.logdir / "end").touch()

        assert run.codes() == dict.fromkeys(TASKS, 0)
        wait_until_gone(tasks)
        assert not term.exists(), "the keys of a run that is over are of no use to anybody"
        logs = {path.name for path in (run.logdir / "procsv" / "logs").glob("*.1.log")}
        assert {"chief.1.log", "worker.0.1.log", "ps.0.1.log"} <= logs
        assert chief.events("run_completed")


def test_launches_of_a_complete_run_start_nothing_and_exit_0(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, target=("tests.support.numpy_training:train_chief",)) as run:
        run.launch_all().wait_event("recovered")
        (run.logdir / "end").touch()
        assert run.codes() == dict.fromkeys(TASKS, 0)
        attempts = len(run.launches["chief"].events("spawned"))

        run.launch_all()
        assert run.codes() == dict.fromkeys(TASKS, 0)
        for launch in run.launches.values():
            assert re.search(r"^procsv: nothing to do: .* step \d+ ", launch.said(), re.MULTILINE)
        assert len(run.launches["chief"].events("spawned")) == attempts


@pytest.mark.parametrize("task", ["chief", "worker.0"])
def test_a_notice_to_any_launch_stops_the_whole_run(tmp_path: Path, task: str) -> None:
    with machines(tmp_path, TASKS) as run:
        chief = run.launch_all()
        tasks = programs(run)

        run.launches[task].process.send_signal(signal.SIGTERM)

        assert run.is_stopped_unsaved()
        wait_until_gone(tasks)
        (stopped,) = chief.events("stopped")
        assert stopped["source"].startswith("SIGTERM")
        assert ("127.0.0.1" in stopped["source"]) == (task != "chief"), "another machine's is named"


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_row_67_a_silent_member_is_lost_and_the_run_ends_for_its_scheduler_to_restart(
    tmp_path: Path, how: signal.Signals
) -> None:
    with machines(tmp_path, TASKS, "--peer-timeout", "5", "--grace", "12") as run:
        chief = run.launch_all()
        tasks = programs(run)
        member = run.launches["worker.0"]

        member.process.send_signal(how)

        (lost,) = chief.wait_event("member_lost")
        assert (lost["role"], lost["silent"] >= 5.0) == ("worker.0", True)
        assert run.is_stopped_unsaved("chief", "ps.0")
        (exited,) = chief.events("exited", "worker.0")
        assert exited["cause"] == "lost-peer"
        assert not chief.events("restarting")
        if how == signal.SIGSTOP:  # once thawed, it finds that the run is over, long before it would give up waiting
            assert tasks["worker.0"].is_running()
            member.process.send_signal(signal.SIGCONT)
            assert member.wait_end(100) == chief.process.returncode
        wait_until_gone(tasks)
        (run.logdir / "end").touch()
        again = run.launch_all()
        assert run.codes() == dict.fromkeys(TASKS, 0)
        assert len(again.events("run_started")) == 2


@pytest.mark.parametrize(
    ("lost", "target"), [("worker.0", ARRAYS), pytest.param("ps.0", REPLICAS, marks=pytest.mark.long)]
)
def test_row_66_a_spare_launch_replaces_a_lost_machine_and_all_tasks_restart(
    tmp_path: Path, lost: str, target: tuple[str, ...]
) -> None:
    options = ("--spare-nodes", "1", "--peer-timeout", "5", "--grace", "10", "--snapshot-secs", "0.2")
    with machines(tmp_path, (*TASKS, "spare.0"), *options, target=target) as run:
        chief = run.launch_all()
        chief.wait_event("recovered", 1, "chief")
        assert tuple(chief.events("run_started")[0]["spare_hosts"]) == ("127.0.0.1",)
        wait_for_memory(chief, 0)  # all that is left of a lost server
        silent = run.launches[lost]

        silent.process.send_signal(signal.SIGSTOP)
        chief.kill(lost)  # its task would die with the machine; here it would block what follows

        chief.wait_event("recovered", 2, "chief")
        (began,) = chief.events("member_lost")
        (stopped,) = chief.events("stopped")
        again = chief.events("recovered", "chief")[-1]
        assert (began["role"], began["spare"]) == (lost, "127.0.0.1")
        assert stopped["source"] == "the loss of 127.0.0.1"
        assert (again["source"], again["step"]) == ("checkpoint", stopped["durable_step"])
        assert again["step"] > 0
        assert "spare_hosts" not in chief.events("run_started")[1]
        chief.wait_event("spawned", 2, lost)
        assert psutil.Process(chief.pid(lost)).ppid() == run.launches["spare.0"].process.pid

        silent.process.send_signal(signal.SIGCONT)  # it finds its successor and does no harm
        assert silent.wait_end() == 75
        assert "another one has" in silent.said()
        before = chief.step()
        chief.wait_step(before + 20)
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.codes() == {**STOPPED, "spare.0": 75}


@pytest.mark.long
def test_a_machine_that_gets_a_notice_is_replaced_by_a_spare_and_costs_no_step(tmp_path: Path) -> None:
    options = ("--spare-nodes", "2", "--grace", "10", "--snapshot-secs", "0")
    with machines(tmp_path, (*TASKS, "spare.0", "spare.1"), *options, target=ARRAYS) as run:
        chief = run.launch_all()
        chief.wait_event("recovered", 1, "chief")
        run.launches["spare.0"].process.send_signal(signal.SIGTERM)  # the spare has no part in the training
        assert run.launches["spare.0"].wait_end() == 75
        (lost,) = chief.wait_event("spare_lost")
        assert (lost["role"], lost["silent"]) == ("spare.0", 0.0)
        chief.wait_step(20)

        run.launches["worker.0"].process.send_signal(signal.SIGTERM)

        assert run.launches["worker.0"].wait_end() == 75
        chief.wait_event("recovered", 2, "chief")
        (stopped,) = chief.events("stopped")
        assert stopped["source"] == "SIGTERM on 127.0.0.1"
        assert chief.events("recovered", "chief")[-1]["step"] == stopped["durable_step"] == stopped["step"]
        assert not chief.events("member_lost")
        chief.wait_event("spawned", 2, "worker.0")
        assert psutil.Process(chief.pid("worker.0")).ppid() == run.launches["spare.1"].process.pid
        chief.process.send_signal(signal.SIGTERM)  # the coordinator's own machine has no spare
        assert run.codes() == {**STOPPED, "spare.0": 75, "spare.1": 75}


@pytest.mark.long
@pytest.mark.parametrize("is_needed", [False, True])
def test_a_spare_launch_that_is_lost_replaces_no_machine(tmp_path: Path, is_needed: bool) -> None:
    with machines(tmp_path, (*TASKS, "spare.0"), "--spare-nodes", "1", "--peer-timeout", "5", "--grace", "12") as run:
        chief = run.launch_all()
        programs(run)
        frozen = ["spare.0", *(["worker.0"] if is_needed else [])]
        run.launches["spare.0"].process.send_signal(signal.SIGSTOP)
        chief.wait_event("spare_lost")
        if is_needed:
            run.launches["worker.0"].process.send_signal(signal.SIGSTOP)
            (lost,) = chief.wait_event("member_lost")
            assert lost["spare"] == ""
        (run.logdir / "end").touch()

        left = [task for task in run.launches if task not in frozen]
        if is_needed:
            assert run.is_stopped_unsaved(*left)
        else:
            assert {run.launches[task].wait_end() for task in left} == {0}
        assert len(chief.events("run_started")) == 1
        for task in frozen:
            run.launches[task].process.send_signal(signal.SIGCONT)
            run.launches[task].process.send_signal(signal.SIGTERM)
            # The exit code of the signal or of the finished run, whichever it sees first.
            assert run.launches[task].wait_end() in {75, 70 if is_needed else 0}


@pytest.mark.long
def test_row_69_members_that_lose_their_coordinator_let_their_tasks_run_for_a_while_and_then_end(
    tmp_path: Path,
) -> None:
    with machines(tmp_path, TASKS, "--peer-timeout", "5", "--coordinator-timeout", "40", "--grace", "12") as run:
        chief = run.launch_all()
        tasks = programs(run)
        members = [run.launches[task] for task in ("worker.0", "ps.0")]

        chief.process.kill()

        for member in members:
            member.wait_for("word of it", partial(says, member, " is silent; "))
        assert tasks["worker.0"].is_running()
        assert [member.wait_end() for member in members] == [75, 75]
        wait_until_gone(tasks)


def test_a_second_set_of_launches_on_the_logdir_is_refused(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS) as run:
        first = run.launch_all()
        first.wait_event("spawned", 1, "worker.0")
        others = dict(run.launches)

        run.launch_all()

        assert run.codes() == dict.fromkeys(TASKS, 73)
        for launch in run.launches.values():
            assert "is in use" in launch.said()
        (run.logdir / "end").touch()
        assert [launch.wait_end() for launch in others.values()] == [0, 0, 0]


def test_a_launch_of_another_command_is_refused_and_says_what_differs(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, "--coordinator-timeout", "60") as run:
        chief = run.launch("chief")
        run.launch("ps.0")
        (tmp_path / "another.py").touch()

        other = run.launch("worker.0", "another.py")

        assert other.wait_end() == 2
        assert re.search(r" is train\.py, .* another\.py ", other.said())
        run.launch("worker.0")  # in its place
        chief.wait_event("spawned", 1, "worker.0")
        (run.logdir / "end").touch()
        assert run.codes() == dict.fromkeys(TASKS, 0)


@pytest.mark.long
def test_the_coordinator_names_the_missing_launches_and_ends_the_run_for_all(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS) as run:
        server = run.launch("ps.0")
        server.wait_for("word that it waits", lambda: "waiting for the " in server.said())
        chief = run.launch("chief", "--coordinator-timeout", "10")

        assert run.codes() == {"ps.0": 75, "chief": 75}
        for launch in (chief, server):
            assert "worker.0 within 10" in launch.said()


def test_a_run_on_one_machine_listens_on_no_port(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import threading; threading.Event().wait()")
    with launched(tmp_path / "run", "--workers", "1", "train.py", cwd=tmp_path) as run:
        run.wait_event("spawned", 1, "worker.0")
        watchdog = psutil.Process(run.process.pid)
        for process in (watchdog, *watchdog.children(recursive=True)):
            assert not [c for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
