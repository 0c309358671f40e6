"""On a network filesystem that goes stale the watchdog keeps its lock, its lease, its records and its log."""

from __future__ import annotations

import os
from pathlib import Path

from procsv.base.identity import TRAINER
from procsv.base.outcome import Exit
from procsv.base.run.lease import RENEW_S, Lease, LeaseFile, ProcessSpace
from procsv.base.run.paths import RunPaths, find_paths
from procsv.base.run.run_file import RunFile
from procsv.base.system import stale
from procsv.base.system.locks import DirectoryLock
from procsv.watchdog.core.actions import Report
from procsv.watchdog.core.events import Ended
from procsv.watchdog.core.restarts.causes import Cause
from procsv.watchdog.edge.console import Console
from procsv.watchdog.edge.opening.held_logdir import HeldLogdir
from procsv.watchdog.edge.run_records import AGAIN_S, RunRecords
from tests.support.fake_clock import FakeClock
from tests.support.journal import an_entry, read_journal
from tests.support.naming import Naming
from tests.support.stale_mount import StaleMount

OURS = Lease(run="0" * 16, place=ProcessSpace("here", "boot", "p"), pid=12, started=3.5, what="procsv launch train.py")


def paths_in(directory: Path) -> RunPaths:
    found = find_paths(directory)
    found.home.mkdir(parents=True, mode=0o700)
    return found


def test_a_stale_logdir_is_not_a_taken_one_and_both_locks_are_taken_again_when_it_is_back(
    stale_files: StaleMount,
) -> None:
    paths, clock = paths_in(stale_files.directory / "own"), FakeClock()
    file, lock = LeaseFile(paths), DirectoryLock(paths.home)
    file.create(OURS)
    assert lock.try_acquire()
    held = HeldLogdir(paths, OURS, lock, clock)
    adopted = stale_files.directory / "adopted"
    adopted.mkdir()
    held.adopt(adopted)

    stale_files.lose()
    for _ in range(3):
        clock.advance(RENEW_S)
        assert held.keep(clock.monotonic()) == ""
    stale_files.find()
    clock.advance(RENEW_S)
    assert held.keep(clock.monotonic()) == ""
    for directory in (paths.home, find_paths(adopted).home):
        assert not DirectoryLock(directory).try_acquire()
    lease = file.holder()
    assert lease is not None
    assert lease.renewed == clock.wall()
    held.let_go()
    lock.release_lock()


def test_records_that_cannot_be_written_are_reported_once_and_continue_in_the_same_files(
    stale_files: StaleMount,
) -> None:
    paths, said, clock = paths_in(stale_files.directory), list[str](), FakeClock()
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
    records.append(an_entry("spawned"), TRAINER, 1)
    records.write_report(Report(Ended(TRAINER, 1, Exit(None, 9)), Cause("killed", ""), "", -1, 0, -1), run)
    stale_files.lose()
    for _ in range(2):
        records.append(an_entry("ready"), TRAINER, 1)
        records.write_run(run, durable=False)
    stale_files.find()
    records.append(an_entry("spawned"), TRAINER, 2)
    clock.advance(AGAIN_S)
    records.append(an_entry("ready"), TRAINER, 2)
    records.close()
    assert [line["incarnation"] for line in read_journal(paths.journal) if line["event"] == "spawned"] == [1, 2]
    assert said == [
        Naming(f"cannot write to {paths.home}: Stale file handle; "),
        Naming(f"{paths.home} can be written"),
    ]


def test_the_log_of_a_detached_watchdog_that_was_stale_has_all_its_lines(stale_files: StaleMount) -> None:
    log = stale_files.directory / "launch.1.log"
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for line in ("one", "two"):
        console = Console(out_fd=out, err_fd=out)
        console.say(line)
        console.finish()
        stale_files.make_stale()
    assert log.read_text() == "procsv: one\nprocsv: two\n"
    stale.close(out)
