"""Notes of how logs grow, seen from outside: only what has changed, within a bound, and never at the run's cost."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from procsv.base.identity import CHECKPOINT, STANDBY, TRAINER, WATCHDOG, TaskId
from procsv.base.run.log_growth import read_marks
from procsv.base.run.logs import older_part
from procsv.base.run.paths import RunPaths
from procsv.base.run.records import make_home
from procsv.watchdog.edge import log_growth
from procsv.watchdog.edge.log_growth import LOGS_MAX, LOOK_S, LogGrowth
from tests.support.fake_clock import FakeClock


class Logs:
    """Two processes that print, and the notes of it."""

    def __init__(self, tmp_path: Path) -> None:
        self.paths = RunPaths(tmp_path / "logdir", tmp_path / "run", tmp_path / "shm")
        self.paths.logdir.mkdir()
        make_home(self.paths)
        self.clock = FakeClock()
        self.clock.advance(1.0)
        self.growth = LogGrowth(self.paths, self.clock)
        self.trainer, self.checkpoint = self.paths.log(TRAINER, 1), self.paths.log(CHECKPOINT, 1)
        for task in (TRAINER, CHECKPOINT):
            self.growth.note_start(task, 1)

    def look(self) -> None:
        self.clock.advance(LOOK_S)
        self.growth.note_growth()

    def noted(self) -> list[tuple[str, int]]:
        return [(mark.log.partition(".")[0], mark.size) for mark in read_marks(self.paths.log_growth)]


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def prints(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def test_only_logs_that_have_grown_are_noted_and_not_more_than_about_twice_a_second(logs: Logs) -> None:
    logs.look()
    assert not logs.paths.log_growth.exists(), "nobody has a log yet"
    prints(logs.trainer, "one\n")
    logs.look()
    prints(logs.trainer, "two\n")
    prints(logs.checkpoint, "saved\n")
    logs.growth.note_growth()
    assert logs.noted() == [("trainer", 4)], "it is not time yet"
    logs.look()
    logs.look()
    assert logs.noted() == [("trainer", 4), ("trainer", 8), ("checkpoint", 6)]
    marks = read_marks(logs.paths.log_growth)
    assert marks[1].time == marks[2].time == pytest.approx(logs.clock.wall() - LOOK_S)
    assert stat.S_IMODE(logs.paths.log_growth.stat().st_mode) == 0o600


def test_the_last_words_of_a_process_are_noted_before_what_others_say_of_its_end(logs: Logs) -> None:
    prints(logs.trainer, "dying\n")
    logs.growth.note_end(TRAINER, 1)
    prints(logs.trainer, "a child of it\n")
    prints(logs.checkpoint, "it is dead\n")
    logs.growth.close()
    assert logs.noted() == [("trainer", 6), ("checkpoint", 11)]


def test_a_new_process_of_a_task_takes_the_place_of_one_whose_end_nobody_has_told(logs: Logs) -> None:
    for number in (1, 2):
        logs.growth.note_start(STANDBY, number)
        prints(logs.paths.log(STANDBY, number), "waits\n")
    logs.growth.note_end(STANDBY, 1)
    prints(logs.paths.log(STANDBY, 1), "more\n")
    prints(logs.paths.log(STANDBY, 2), "more\n")
    logs.look()
    assert [(mark.log, mark.size) for mark in read_marks(logs.paths.log_growth)] == [
        ("standby.1.log", 6),
        ("standby.2.log", 6),
        ("standby.2.log", 11),
    ]


def test_the_log_of_a_detached_runs_watchdog_is_looked_at_too(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdout = tmp_path / "stdout"
    stdout.symlink_to(logs.paths.log(WATCHDOG, 3))
    monkeypatch.setattr(log_growth, "STDOUT", stdout)
    logs.growth = LogGrowth(logs.paths, logs.clock)
    prints(logs.paths.log(WATCHDOG, 3), "begun\n")
    logs.look()
    assert logs.noted() == [("watchdog", 6)]


def test_after_a_rotation_the_new_file_is_told_from_the_old_one(logs: Logs) -> None:
    prints(logs.trainer, "before\n")
    logs.look()
    logs.trainer.replace(older_part(logs.trainer))
    logs.look()
    prints(logs.trainer, "after\n")
    logs.look()
    marks = read_marks(logs.paths.log_growth)
    assert [(mark.file, mark.size) for mark in marks] == [
        (older_part(logs.trainer).stat().st_ino, 7),
        (logs.trainer.stat().st_ino, 6),
    ]


def test_a_file_of_notes_that_somebody_removes_is_made_anew(logs: Logs) -> None:
    prints(logs.trainer, "one\n")
    logs.look()
    logs.paths.log_growth.unlink()
    prints(logs.trainer, "two\n")
    logs.look()
    assert logs.noted() == [("trainer", 8)]


def test_a_line_that_a_kill_has_cut_short_costs_only_itself(logs: Logs) -> None:
    prints(logs.trainer, "one\n")
    logs.look()
    os.truncate(logs.paths.log_growth, logs.paths.log_growth.stat().st_size - 5)
    prints(logs.checkpoint, "saved\n")
    logs.look()
    assert logs.noted() == [("checkpoint", 6)]


def test_what_a_full_disk_or_a_missing_directory_refuses_is_noted_when_there_is_room(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    prints(logs.trainer, "one\n")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
    logs.look()
    monkeypatch.undo()
    assert logs.noted() == []
    away = logs.paths.home.with_name("away")
    logs.paths.logs.rename(away)
    logs.look()
    away.rename(logs.paths.logs)
    logs.look()
    assert logs.noted() == [("trainer", 4)]


def test_nothing_is_written_through_a_symbolic_link_or_into_another_runs_directory(logs: Logs, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.touch()
    logs.paths.log_growth.symlink_to(victim)
    prints(logs.trainer, "one\n")
    logs.look()
    assert victim.read_bytes() == b""
    logs.paths.log_growth.unlink()
    logs.growth.stop_writing()
    logs.look()
    logs.growth.close()
    assert not logs.paths.log_growth.exists()


def test_the_file_stays_within_its_bound(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_growth, "BYTES_MAX", 4000)
    sizes = []
    for _ in range(1000):
        prints(logs.trainer, "line\n")
        prints(logs.checkpoint, "line\n")
        logs.look()
        logs.clock.advance(10.0)
        sizes.append(logs.paths.log_growth.stat().st_size)
    assert 2500 < max(sizes) < 4300
    assert logs.noted()[-2:] == [("trainer", 5000), ("checkpoint", 5000)]
    assert logs.noted()[0] == ("trainer", 5), "its beginning"
    assert list(logs.paths.logs.glob(".*")) == []


def test_a_file_that_cannot_be_made_smaller_does_not_grow(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_growth, "BYTES_MAX", 100)

    def fails(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(log_growth, "replace_file", fails)
    for _ in range(10):
        prints(logs.trainer, "line\n")
        logs.look()
    assert logs.paths.log_growth.stat().st_size < 300


def test_of_many_logs_each_look_takes_some_in_turn_and_none_is_passed_over(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [TaskId("worker", index) for index in range(4 * LOGS_MAX)]
    for task in tasks:
        logs.growth.note_start(task, 1)
        prints(logs.paths.log(task, 1), "begun\n")
    looked_at = list[Path]()
    look_at = log_growth._look_at

    def counted(path: Path) -> tuple[int, int] | None:
        looked_at.append(path)
        return look_at(path)

    monkeypatch.setattr(log_growth, "_look_at", counted)

    for _ in range(5):  # as many as there are shares
        before = len(looked_at)
        logs.look()
        assert len(looked_at) - before <= LOGS_MAX

    assert {mark.log for mark in read_marks(logs.paths.log_growth)} == {logs.paths.log(t, 1).name for t in tasks}
