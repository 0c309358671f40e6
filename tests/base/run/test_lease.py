"""A logdir's lease shows whether its holder may live, and ours is kept until another run takes it."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from procsv.base.encoding import encode_json, seal
from procsv.base.run.lease import (
    RENEW_S,
    TRIES_MAX,
    Lease,
    LeaseFile,
    LeaseKeeper,
    LeaseStanding,
    ProcessSpace,
    judge_lease,
    other_holder,
)
from procsv.base.run.paths import RunPaths, find_paths
from procsv.base.run.run_file import RunFile, read_run, write_run
from procsv.base.system import disk
from procsv.base.system.fenced_rename import Fenced, FencedRename
from tests.support.stale_mount import StaleMount
from tests.support.standstill import Standstill

HERE = ProcessSpace("here", "boot", "pid:[1]")
OURS = Lease(run="0" * 16, place=HERE, pid=12, started=3.5, what="procsv launch train.py", since=100.0, renewed=100.0)
REBOOTED, CONTAINER, ELSEWHERE = (
    ProcessSpace("here", "older", "pid:[1]"),
    ProcessSpace("c", "boot", "pid:[2]"),
    ProcessSpace("b", "b", "p"),
)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = find_paths(tmp_path / "logdir")
    found.home.mkdir(parents=True, mode=0o700)
    return found


def a_lease(**changes: Any) -> Lease:
    return msgspec.structs.replace(OURS, **changes)


@pytest.mark.parametrize(
    ("place", "has_lock", "is_alive", "standing"),
    [
        (HERE, True, True, LeaseStanding.FREE),  # the lock shows it: the process has released the logdir and lives on
        (HERE, True, False, LeaseStanding.FREE),
        (HERE, False, True, LeaseStanding.IN_USE),
        (HERE, False, False, LeaseStanding.FREE),
        (CONTAINER, True, False, LeaseStanding.FREE),
        (CONTAINER, False, False, LeaseStanding.WATCHED),
        (REBOOTED, True, False, LeaseStanding.WATCHED),
        (REBOOTED, False, False, LeaseStanding.WATCHED),
        (ELSEWHERE, True, True, LeaseStanding.WATCHED),
        (ELSEWHERE, False, True, LeaseStanding.WATCHED),
    ],
)
def test_locks_count_within_one_boot_and_pids_within_one_namespace_and_other_leases_are_watched(
    place: ProcessSpace, has_lock: bool, is_alive: bool, standing: LeaseStanding
) -> None:
    assert judge_lease(a_lease(place=place), HERE, has_lock=has_lock, is_alive=is_alive) is standing


@pytest.mark.parametrize("has_lock", [True, False])
def test_a_file_that_is_not_a_lease_is_watched(has_lock: bool) -> None:
    assert judge_lease(None, HERE, has_lock=has_lock, is_alive=True) is LeaseStanding.WATCHED


def test_a_lease_is_written_whole_and_removed_only_by_its_own_run(paths: RunPaths) -> None:
    file = LeaseFile(paths)
    assert file.read_lease() is None
    file.create(OURS)
    assert file.holder() == OURS
    assert paths.lease.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        file.create(a_lease(run="1" * 16))

    file.take_lease(a_lease(run="1" * 16))
    file.remove(OURS.run)
    assert file.holder() == a_lease(run="1" * 16)
    file.remove("1" * 16)
    assert list(paths.home.iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"\xff", b"{}", b'{"run":"0","checksum":"0"}'])
def test_a_damaged_lease_has_no_holder(paths: RunPaths, data: bytes) -> None:
    paths.lease.write_bytes(data)
    assert LeaseFile(paths).read_lease() == data
    assert LeaseFile(paths).holder() is None


def test_a_lease_is_never_read_through_a_link(paths: RunPaths, tmp_path: Path) -> None:
    LeaseFile(paths).create(OURS)
    paths.lease.rename(tmp_path / "another")
    paths.lease.symlink_to(tmp_path / "another")
    assert LeaseFile(paths).holder() is None


def test_a_renewal_is_not_synced(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[object]()
    for name in ("fsync", "fsync_path"):
        monkeypatch.setattr(disk, name, synced.append)
    LeaseFile(paths).take_lease(OURS, is_new=True)
    assert LeaseKeeper(paths, OURS, 0.0).renew(5.0, 105.0) is None
    assert LeaseFile(paths).holder() == a_lease(renewed=105.0)
    assert synced == []


@pytest.mark.parametrize(("since", "is_one"), [(0.0, True), (-0.5, False), (0.5, True)])
def test_a_lease_has_times_that_can_be_printed(paths: RunPaths, since: float, is_one: bool) -> None:
    lease = Lease(run="0" * 16, place=HERE, pid=12, started=3.5, what="")
    assert (lease.since, lease.renewed) == (0.0, 0.0)
    LeaseFile(paths).create(msgspec.structs.replace(lease, since=since))
    assert (LeaseFile(paths).holder() is not None) == is_one


def test_a_leases_age_is_measured_by_the_clock_of_its_filesystem(paths: RunPaths) -> None:
    file = LeaseFile(paths)
    (paths.home / f".lease.{os.getpid()}.probe").touch()  # left by a killed process
    file.create(OURS)
    assert file.age_s() < 60.0
    written = paths.lease.stat().st_mtime
    os.utime(paths.lease, (written - 70, written - 70))
    assert file.age_s() >= 70.0
    assert list(paths.home.iterdir()) == [paths.lease]


def test_a_lease_is_renewed_on_time_and_recreated_if_it_is_gone(paths: RunPaths) -> None:
    file = LeaseFile(paths)
    file.create(OURS)
    keeper = LeaseKeeper(paths, OURS, 10.0)
    assert not keeper.is_due(10.0 + RENEW_S - 0.1)
    assert keeper.is_due(10.0 + RENEW_S)
    assert keeper.renew(15.0, 105.0) is None
    assert file.holder() == a_lease(renewed=105.0)
    assert not keeper.is_due(15.0 + RENEW_S - 0.1)

    paths.lease.unlink()
    assert keeper.renew(20.0, 110.0) is None
    assert file.holder() == a_lease(renewed=110.0)
    paths.lease.write_bytes(b"\xff")
    assert keeper.renew(25.0, 115.0) is None
    assert file.holder() == a_lease(renewed=115.0)


def test_a_lease_that_was_taken_over_is_never_renewed(paths: RunPaths) -> None:
    theirs = a_lease(run="1" * 16, place=ELSEWHERE)
    file = LeaseFile(paths)
    file.create(theirs)
    assert LeaseKeeper(paths, OURS, 0.0).renew(5.0, 105.0) == theirs
    assert file.holder() == theirs


def test_a_lease_that_another_run_has_held_and_released_is_not_recreated(paths: RunPaths) -> None:
    """A holder that was frozen for that long would overwrite the other run's files."""
    ours, theirs = _run_file(paths, OURS.run), _run_file(paths, "1" * 16)
    keeper = LeaseKeeper(paths, OURS, 0.0)
    paths.run_json.write_bytes(seal(encode_json(ours)))
    assert keeper.renew(5.0, 105.0) is None

    paths.run_json.write_bytes(seal(encode_json(theirs)))
    paths.lease.unlink()
    taken = keeper.renew(10.0, 110.0)

    assert taken is not None
    assert taken.run == "1" * 16
    assert not paths.lease.exists()
    assert LeaseKeeper(paths, OURS, 0.0, has_run_json=False).renew(15.0, 115.0) is None, (
        "run.json there is of no holder"
    )


def _run_file(paths: RunPaths, run: str) -> RunFile:
    directories: dict[str, Any] = {name: str(getattr(paths, name)) for name in ("logdir", "run_dir", "shm_dir")}
    process: dict[str, Any] = {"pid": 7, "started": 1.0, "boot": "b", "started_at": 1.0}
    return RunFile(run=run, target="train.py", state="running", incarnation=1, **process, **directories)


def test_a_missing_directory_does_not_cost_the_lease(paths: RunPaths) -> None:
    keeper = LeaseKeeper(paths, OURS, 0.0)
    paths.home.rmdir()
    assert keeper.renew(5.0, 105.0) is None


def test_a_file_that_another_machine_replaces_during_a_read_is_read_again(stale_files: StaleMount) -> None:
    paths = find_paths(stale_files.directory)
    paths.home.mkdir(mode=0o700)
    file, run = LeaseFile(paths), _run_file(paths, OURS.run)
    file.create(OURS)
    write_run(paths.run_json, run, durable=False)
    stale_files.replace_files()
    assert file.holder() == OURS
    assert read_run(paths.run_json) == run
    assert stale_files.met_by(os.getpid()) == {"read"}


THEIRS = a_lease(run="1" * 16, place=ELSEWHERE)


def take_over(file: LeaseFile) -> None:
    try:
        file.take_lease(THEIRS)
    except FileNotFoundError:
        file.take_lease(THEIRS, is_new=True)


@pytest.mark.parametrize("is_its_end", [False, True], ids=["renewal", "end"])
def test_row_68_a_holder_that_freezes_before_any_call_takes_nothing_back_from_its_successor(
    paths: RunPaths, is_its_end: bool
) -> None:
    file, at = LeaseFile(paths), 0
    while True:
        at += 1
        file.remove(THEIRS.run)
        file.take_lease(OURS, is_new=True)
        keeper, taken = LeaseKeeper(paths, OURS, 0.0), list[Lease | None]()
        with Standstill(at, partial(take_over, file)) as still:
            if is_its_end:
                file.remove(OURS.run)
            else:
                taken.append(keeper.renew(5.0, 105.0))
        if not still.has_happened:
            break
        assert file.holder() == THEIRS
        assert taken in ([], [THEIRS])
        assert [path.name for path in paths.home.glob(".pen.*")] == [f".pen.{THEIRS.run}"]
    assert at > 3, "the disk was not watched"


def replace(file: LeaseFile) -> None:
    """Replace the lease as a process that has just read it."""
    with contextlib.suppress(Fenced):
        file.replace(OURS)


@pytest.mark.parametrize("is_new", [False, True], ids=["a lease", "none"])
def test_row_68_either_the_successor_or_a_holder_that_renews_before_any_of_its_calls_has_the_logdir(
    paths: RunPaths, is_new: bool
) -> None:
    file, at, outcomes = LeaseFile(paths), 0, set[bool]()
    while True:
        at += 1
        for run in (THEIRS.run, OURS.run):
            file.remove(run)
        keeper = LeaseKeeper(paths, OURS, 0.0)
        file.take_lease(OURS, is_new=True)
        if is_new:
            paths.lease.unlink()
        with Standstill(at, partial(replace, file)) as still, contextlib.suppress(FileExistsError):
            file.take_lease(THEIRS, is_new=is_new)
        if not still.has_happened:
            break
        has_it = other_holder(file, THEIRS.run) is None
        assert (keeper.renew(10.0, 110.0) is None) != has_it
        assert (other_holder(file, THEIRS.run) is None) == has_it, "what it has found then, stays"
        outcomes.add(has_it)
    assert outcomes == {True, False}


def test_files_that_others_put_in_place_of_a_pen_stay(paths: RunPaths, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "file").touch()
    (paths.home / ".pen.1").symlink_to(tmp_path / "others")
    (paths.home / ".pen.2").touch()
    LeaseFile(paths).take_lease(OURS, is_new=True)
    assert (tmp_path / "others" / "file").exists()
    assert (paths.home / ".pen.2").exists()


def test_taking_a_pen_repeatedly_writes_nothing(paths: RunPaths) -> None:
    file, tried = LeaseFile(paths), list[int]()

    def write(fence: FencedRename) -> None:
        tried.append(1)
        fence.home.rmdir()
        fence.put(paths.run_json, b"")

    file.create(OURS)
    with pytest.raises(Fenced):
        file.change(OURS.run, write)
    assert len(tried) == TRIES_MAX
    assert not paths.run_json.exists()
