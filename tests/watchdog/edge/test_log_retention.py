"""A run of weeks keeps a limited number of logs and crash reports a task."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from procsv.base.identity import CHECKPOINT, TRAINER, TaskId
from procsv.base.outcome import Exit
from procsv.base.run.logs import LOG_BYTES_MAX, LOGS_KEPT_MAX, prune_logs
from procsv.base.run.paths import RunPaths, find_paths
from procsv.base.run.run_file import RunFile, read_run
from procsv.base.system.system_clock import SystemClock
from procsv.watchdog.core.actions import Report
from procsv.watchdog.core.events import Ended
from procsv.watchdog.core.restarts.causes import Cause
from procsv.watchdog.edge import run_records
from tests.support.launched import NEWS_S_MAX, procsv
from tests.support.programs import until

WORKER = TaskId.parse("worker.1")


def make(logs: Path, number: int, size: int = 1, role: str = "trainer") -> None:
    path = logs / f"{role}.{number}.log"
    path.touch()
    os.truncate(path, size)  # sparse: it takes no room
    os.utime(path, (number, number))


def kept(logs: Path, role: str = "trainer") -> list[int]:
    return sorted(int(path.name.split(".")[1]) for path in logs.glob(f"{role}.*.log"))


def test_the_newest_twenty_logs_of_a_role_are_kept_and_other_roles_are_left_alone(tmp_path: Path) -> None:
    for number in range(1, 31):
        make(tmp_path, number)
    (tmp_path / "checkpoint.1.log").touch()
    prune_logs(tmp_path / "trainer.31.log")

    assert LOGS_KEPT_MAX == 20
    assert kept(tmp_path) == list(range(12, 31))  # and the new one
    assert (tmp_path / "checkpoint.1.log").exists()


def test_no_more_than_a_gibibyte_is_kept(tmp_path: Path) -> None:
    for number in range(1, 6):
        make(tmp_path, number, LOG_BYTES_MAX // 3)
    prune_logs(tmp_path / "trainer.6.log")

    assert LOG_BYTES_MAX == 2**30
    assert kept(tmp_path) == [3, 4, 5]


def test_each_detached_launch_leaves_the_newest_twenty_logs_of_the_watchdog(tmp_path: Path) -> None:
    paths, program = find_paths(tmp_path / "logdir"), tmp_path / "train.py"
    program.touch()
    paths.logs.mkdir(parents=True)
    for number in range(1, 31):
        make(paths.logs, number, role="watchdog")

    assert procsv("launch", "--detach", "--logdir", str(tmp_path / "logdir"), str(program)).returncode == 0

    assert set(kept(paths.logs, "watchdog")) - {31} == set(range(12, 31))  # its own is removed if it has ended by then
    until(lambda: has_ended(paths), lambda: threading.Event().wait(0.02), NEWS_S_MAX)


def has_ended(paths: RunPaths) -> bool:
    run = read_run(paths.run_json)
    return run is not None and run.exit_code == 0


@pytest.mark.parametrize(
    ("task", "prefix"), [(TRAINER, ""), (WORKER, "worker.1."), (CHECKPOINT, "checkpoint.")], ids=str
)
def test_the_newest_crash_reports_of_each_task_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: TaskId, prefix: str
) -> None:
    monkeypatch.setattr(run_records, "CRASHES_KEPT_MAX", 3)
    paths = find_paths(tmp_path)
    run = RunFile(
        run="0123456789abcdef",
        target="train.py",
        logdir=str(tmp_path),
        run_dir=str(paths.run_dir),
        shm_dir=str(paths.shm_dir),
        pid=1,
        started=0.0,
        boot="",
        state="running",
        incarnation=1,
        started_at=0.0,
    )
    said: list[str] = []
    book = run_records.RunRecords(paths, SystemClock(), said.append)
    paths.crashes.mkdir(parents=True)
    (paths.crashes / "other.1.1.json").touch()
    for number in (8, 9, 10, 11):
        crash = Report(Ended(task, number, Exit(None, 9)), Cause("killed", ""), "", -1, 0, -1)
        book.write_report(crash, run)
    book.close()

    assert {path.name for path in paths.crashes.iterdir()} == {
        *(f"{prefix}{n}.{form}" for n in (9, 10, 11) for form in ("json", "txt")),
        "other.1.1.json",
    }
    assert said == []
