"""`procsv ls`, and the run that a command means where DIR is left out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from procsv.base.system.processes import identify
from tests.cli.test_commands import a_run, procsv


def alive() -> dict[str, float]:
    return {"started": identify(os.getpid()).started}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Three runs that have ended, in three places, and one that is active."""
    a_run(tmp_path / "runs" / "old", started_at=100.0, state="done", ended_at=200.0, exit_code=0, step=50)
    a_run(tmp_path / "mine", started_at=200.0)
    a_run(
        tmp_path / "runs" / "newest", started_at=400.0, state="stopped", ended_at=500.0, exit_code=75, args=("-n", "3")
    )
    a_run(tmp_path / "runs" / "active", started_at=300.0, **alive())
    return tmp_path


def test_ls_lists_the_runs_here_and_under_runs_with_their_states_the_newest_first(place: Path) -> None:
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
    assert lines[0].split() == ["run", "state", "step", "on", "disk", "started", "target"]
    assert [line.split()[0] for line in lines[1:]] == [row[0] for row in rows]
    assert max(map(len, lines)) <= 80, "it fits into 80 columns"
    assert "-n 3" in lines[1]


def test_ls_takes_a_directory_and_says_where_it_found_nothing(place: Path) -> None:
    names = [row["directory"] for row in json.loads(procsv("ls", "runs", "--json", cwd=place).stdout)]
    assert names == ["runs/newest", "runs/active", "runs/old"]
    (place / "empty").mkdir()
    assert procsv("ls", "empty", cwd=place).stdout.endswith(" empty\n")
    assert procsv("ls", "nowhere", cwd=place).stderr.endswith(" nowhere\n")


def test_ls_passes_over_a_run_file_that_is_damaged(place: Path) -> None:
    (place / "mine" / "procsv" / "run.json").write_text("{")
    assert "mine" not in procsv("ls", cwd=place).stdout


def test_a_command_without_a_directory_means_the_newest_run_and_says_which(place: Path) -> None:
    done = procsv("status", "--json", cwd=place)
    assert (done.returncode, done.stderr.endswith(" runs/newest\n")) == (0, True)
    assert json.loads(done.stdout)["logdir"] == str(place / "runs" / "newest")
    within = procsv("status", "--json", cwd=place / "runs" / "old")
    assert json.loads(within.stdout)["state"] == "done"


def test_a_command_that_changes_a_run_takes_the_one_that_is_active_and_never_guesses(place: Path) -> None:
    said = procsv("restart", cwd=place).stderr
    assert said.splitlines()[0].endswith(" runs/active")
    a_run(place / "runs" / "other", started_at=350.0, **alive())
    for command in ("stop", "restart", "preempt"):
        done = procsv(command, cwd=place)
        assert done.returncode == 2
        assert done.stderr.endswith(": runs/other, runs/active\n")


def test_a_command_without_a_directory_where_there_is_no_run_says_what_to_do(tmp_path: Path) -> None:
    for command in ("status", "logs", "report", "checkpoints"):
        done = procsv(command, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n"), "runs/" in done.stderr) == (2, 1, True)
    assert "runs/" in procsv("stop", cwd=tmp_path).stderr
