"""Records that fail to be written from time to time are reported once, and a taken logdir gets none."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from procsv.base.run.lease import Lease, LeaseFile, ProcessSpace
from procsv.base.run.paths import RunPaths, find_paths
from procsv.base.run.run_file import RunFile, read_run
from procsv.watchdog.edge.run_records import AGAIN_S, RunRecords
from tests.support.fake_clock import FakeClock
from tests.support.naming import Naming
from tests.support.standstill import Standstill


def a_run_in(paths: RunPaths, **changes: Any) -> RunFile:
    run = RunFile(
        run="0123456789abcdef",
        target="train.py",
        logdir=str(paths.logdir),
        run_dir=str(paths.run_dir),
        shm_dir=str(paths.shm_dir),
        pid=1,
        started=0.0,
        boot="",
        state="running",
        incarnation=1,
        started_at=0.0,
    )
    return msgspec.structs.replace(run, **changes)


def test_a_disk_that_has_room_from_time_to_time_is_reported_once_as_failing_and_once_as_working(tmp_path: Path) -> None:
    paths, clock, said = find_paths(tmp_path), FakeClock(), list[str]()
    paths.home.mkdir(mode=0o700)
    run = a_run_in(paths)
    records = RunRecords(paths, clock, said.append)
    for _ in range(6):
        paths.run_json.mkdir()  # no file can replace a directory
        records.write_run(run, durable=False)
        clock.advance(1.0)
        paths.run_json.rmdir()
        records.write_run(run, durable=False)
        clock.advance(AGAIN_S - 1.0)
        records.write_run(run, durable=False)
        paths.run_json.unlink()
    failing = Naming(f"cannot write to {paths.home}: Is a directory; ")
    assert said == [failing]

    records.write_run(run, durable=False)
    clock.advance(AGAIN_S)
    for _ in range(2):
        records.write_run(run, durable=False)
    assert said == [failing, Naming(f"{paths.home} can be written")]
    records.close()


class Logdir:
    """The logdir of a run here that another run takes over from elsewhere."""

    def __init__(self, directory: Path) -> None:
        self.paths, self.said = find_paths(directory), list[str]()
        self.paths.home.mkdir(parents=True)
        self.ours, self.theirs = (a_run_in(self.paths, run=digit * 16) for digit in "01")
        self.file = LeaseFile(self.paths)
        self.file.take_lease(lease_of(self.ours, "here"), is_new=True)
        self.records = RunRecords(self.paths, FakeClock(), self.said.append)
        self.records.write_run(self.ours, durable=True)

    def take_over(self, has_ended: bool) -> None:
        self.file.take_lease(lease_of(self.theirs, "node17"))
        RunRecords(self.paths, FakeClock(), self.said.append).write_run(self.theirs, durable=True)
        if has_ended:
            self.file.remove(self.theirs.run)


def lease_of(run: RunFile, host: str) -> Lease:
    return Lease(run=run.run, place=ProcessSpace(host, host, "p"), pid=1, started=0.0, what="procsv launch")


@pytest.mark.parametrize("has_ended", [False, True], ids=["", "and has come to its end"])
def test_row_68_run_json_of_a_watchdog_frozen_before_any_of_its_calls_replaces_nothing_of_another_machine(
    tmp_path: Path, has_ended: bool
) -> None:
    at = 0
    while True:
        at += 1
        logdir = Logdir(tmp_path / str(at))
        assert read_run(logdir.paths.run_json) == logdir.ours
        with Standstill(at, partial(logdir.take_over, has_ended)) as still:
            logdir.records.write_run(msgspec.structs.replace(logdir.ours, step=8), durable=True)
        if not still.has_happened:
            break
        logdir.records.write_run(logdir.ours, durable=False)
        assert read_run(logdir.paths.run_json) == logdir.theirs
        assert (logdir.file.read_lease() is None) == has_ended
        assert logdir.said == []
    assert at > 5, "the disk was not watched"
