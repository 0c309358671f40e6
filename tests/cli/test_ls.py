"""`procsv ls` lists the runs, and a command without DIR picks the right run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from procsv.base.encoding import encode_json
from procsv.base.identity import WATCHDOG
from procsv.base.outcome import Loss
from procsv.base.system.processes import identify
from procsv.base.system.system_clock import SystemClock
from procsv.cli.directory import list_runs
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.watchdog_messages import Status, StatusRequest
from procsv.ipc.messaging.zmq_transport import Server, Waiter, new_context
from procsv.report.status_object import status_of
from procsv.services.summary.event_file import frame
from tests.cli.test_commands import ROOT, a_run, procsv
from tests.report.test_losses import scalar
from tests.support.stale_mount import StaleMount


def alive() -> dict[str, float]:
    return {"started": identify(os.getpid()).started}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Make three ended runs in three places and an active one."""
    now_s = SystemClock().wall()
    a_run(tmp_path / "runs" / "old", started_at=now_s - 400, state="done", ended_at=now_s - 310, exit_code=0, step=50)
    a_run(tmp_path / "mine", started_at=now_s - 300)
    a_run(
        tmp_path / "runs" / "newest",
        started_at=now_s - 100,
        state="stopped",
        ended_at=now_s - 10,
        exit_code=75,
        args=("-n", "3"),
    )
    a_run(tmp_path / "runs" / "active", started_at=now_s - 200, **alive())
    return tmp_path


def test_ls_lists_the_runs_here_and_under_runs_with_their_states_and_the_newest_first(place: Path) -> None:
    done = procsv("ls", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    rows = [(row["directory"], row["state"], row["running"], row["step"]) for row in json.loads(done.stdout)]
    assert rows == [
        ("runs/newest", "stopped", False, 840),
        ("runs/active", "running", True, 840),
        ("mine", "interrupted", False, 840),
        ("runs/old", "done", False, 50),
    ]
    lines = procsv("ls", cwd=place).stdout.splitlines()
    assert lines[0].split() == ["run", "state", "step", "on", "disk", "loss", "started", "target"]
    assert [line.split()[0] for line in lines[1:]] == [row[0] for row in rows]
    assert max(map(len, lines)) <= 80, "it fits into 80 columns"
    assert "-n 3" in lines[1]


def test_ls_shows_the_newest_loss_of_the_runs_current_steps(place: Path) -> None:
    records = [scalar(0.5, step=830), scalar(0.25, step=840), scalar(0.125, step=850)]
    (place / "mine" / "events.out.tfevents.1.host").write_bytes(b"".join(map(frame, records)))
    a_run(place / "fit", started_at=1.0, step=840, loss=Loss("loss", 837, 2.5))
    rows = {row["directory"]: row["loss"] for row in json.loads(procsv("ls", "--json", cwd=place).stdout)}
    assert rows["mine"] == {"name": "loss", "step": 840, "value": 0.25}, "850 is to be made again"
    assert rows["fit"] == {"name": "loss", "step": 837, "value": 2.5}
    assert rows["runs/old"] is None
    (line,) = [line for line in procsv("ls", cwd=place).stdout.splitlines() if line.startswith("mine")]
    assert line.split()[4] == "0.25"


def test_ls_asks_the_watchdog_of_an_active_run_because_run_json_may_lag(tmp_path: Path) -> None:
    run, context = a_run(tmp_path / "mine", state="pending", step=1, **alive()), new_context()
    run.paths.run_dir.mkdir(mode=0o700)
    server = Server(context, run.paths.control_socket, Address(run.run, WATCHDOG, 1), SystemClock())
    try:
        waiter = Waiter()
        waiter.register(server)
        asking = subprocess.Popen(
            [sys.executable, "-m", "procsv.cli.main", "ls", "--json"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
        )
        now = msgspec.structs.replace(run, state="hung", step=60)
        said = Status(encode_json(status_of(now, running=True, processes=(), snapshots=None)))
        while asking.poll() is None:
            waiter.wait(0.05)
            while (received := server.receive()) is not None:
                if isinstance(received.body, StatusRequest):
                    server.send(received.who, said, re=received.seq)
        (row,) = json.loads(asking.communicate()[0])
        assert (row["state"], row["step"]) == ("hung", 60)
    finally:
        server.close()
        context.term()
        shutil.rmtree(run.paths.run_dir)


def test_ls_takes_a_directory_and_says_where_it_found_no_run(place: Path) -> None:
    names = [row["directory"] for row in json.loads(procsv("ls", "runs", "--json", cwd=place).stdout)]
    assert names == ["runs/newest", "runs/active", "runs/old"]
    (place / "empty").mkdir()
    assert procsv("ls", "empty", cwd=place).stdout.endswith(" empty\n")
    assert procsv("ls", "nowhere", cwd=place).stderr.endswith(" nowhere\n")


def test_a_link_to_a_run_is_no_other_run_and_an_active_run_comes_before_its_copy(place: Path) -> None:
    (place / "latest").symlink_to(place / "runs" / "active")
    shutil.copytree(place / "runs" / "active", place / "runs" / "a_copy")
    rows = [(one["directory"], one["running"]) for one in json.loads(procsv("ls", "--json", cwd=place).stdout)]
    assert rows[1:3] == [("runs/active", True), ("runs/a_copy", False)]
    assert "latest" not in dict(rows)
    assert procsv("restart", cwd=place).stderr.splitlines()[0].endswith(" runs/active")


def test_ls_skips_a_damaged_run_file(place: Path) -> None:
    (place / "mine" / "procsv" / "run.json").write_text("{")
    assert "mine" not in procsv("ls", cwd=place).stdout


def test_a_command_without_a_directory_uses_the_newest_run_and_names_it(place: Path) -> None:
    done = procsv("status", "--json", cwd=place)
    assert (done.returncode, done.stderr.endswith(" runs/newest\n")) == (0, True)
    assert json.loads(done.stdout)["logdir"] == str(place / "runs" / "newest")
    within = procsv("status", "--json", cwd=place / "runs" / "old")
    assert json.loads(within.stdout)["state"] == "done"


def test_a_command_that_changes_a_run_uses_the_active_one_and_never_guesses(place: Path) -> None:
    said = procsv("restart", cwd=place).stderr
    assert said.splitlines()[0].endswith(" runs/active")
    a_run(place / "runs" / "other", started_at=SystemClock().wall() - 150, **alive())
    for command in ("stop", "restart", "preempt"):
        done = procsv(command, cwd=place)
        assert done.returncode == 2
        assert done.stderr.endswith(": runs/other, runs/active\n")


def test_a_command_without_a_directory_and_without_runs_says_what_to_do(tmp_path: Path) -> None:
    for command in ("status", "logs", "report", "checkpoints"):
        done = procsv(command, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n"), "runs/" in done.stderr) == (2, 1, True)
    assert "runs/" in procsv("stop", cwd=tmp_path).stderr


def test_a_mount_that_does_not_answer_hides_no_other_run(place: Path, stale_files: StaleMount) -> None:
    stale_files.lose()
    try:
        assert len(list_runs(place)) == 4
    finally:
        stale_files.find()
