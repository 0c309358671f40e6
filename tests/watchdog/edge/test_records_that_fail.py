"""Records that can be written now and then: said once, and once more when that has held for a while."""

from __future__ import annotations

from pathlib import Path

from procsv.base.run.paths import find_paths
from procsv.base.run.run_file import RunFile
from procsv.watchdog.edge.run_records import AGAIN_S, RunRecords
from tests.support.fake_clock import FakeClock
from tests.support.naming import Naming


def test_a_disk_that_has_room_now_and_then_is_said_once_to_fail_and_once_to_work_again(tmp_path: Path) -> None:
    paths, clock, said = find_paths(tmp_path), FakeClock(), list[str]()
    paths.home.mkdir(mode=0o700)
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
    records = RunRecords(paths, clock, said.append)
    for _ in range(6):
        paths.run_json.mkdir()  # no file can take its place
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
