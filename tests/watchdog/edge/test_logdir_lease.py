"""A lease is taken at once, after watching the old one, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from procsv.base.errors import LogdirLocked
from procsv.base.run.lease import Lease, LeaseFile, ProcessSpace, find_place
from procsv.base.run.paths import RunPaths, find_paths
from procsv.base.system.processes import identify
from procsv.watchdog.edge.opening.run_lock import LEASE_S, LEASE_S_LOOKS_OLD, SETTLE_S, take_lease
from tests.support.fake_clock import FakeClock
from tests.support.naming import Naming

ELSEWHERE = ProcessSpace("node17", "another boot", "pid:[1]")


class Taking:
    """One launch that wants a logdir's lease."""

    def __init__(self, logdir: Path) -> None:
        self.paths: RunPaths = find_paths(logdir)
        self.paths.home.mkdir(parents=True)
        self.file, self.clock, self.said = LeaseFile(self.paths), FakeClock(), list[str]()
        me = identify(os.getpid())
        self.ours = Lease(run="0" * 16, place=find_place(), pid=me.pid, started=me.started, what="python train.py")
        self.theirs = msgspec.structs.replace(self.ours, run="1" * 16, place=ELSEWHERE, what="procsv launch")
        self.meanwhile: Callable[[], None] = lambda: None

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.meanwhile()

    def take(self, *, has_lock: bool = True, watches: bool = True) -> Lease | None:
        how = {"has_lock": has_lock, "watches": watches}
        return take_lease(self.paths, self.ours, self.clock, self.wait, self.said.append, **how)


@pytest.fixture
def taking(tmp_path: Path) -> Taking:
    return Taking(tmp_path / "logdir")


def test_a_logdir_without_a_lease_is_taken_at_once(taking: Taking) -> None:
    assert taking.take(has_lock=False) is None
    assert taking.file.holder() == taking.ours
    assert (taking.clock.now_s, taking.said) == (0.0, [])


def test_of_two_that_start_at_the_same_time_one_is_refused(taking: Taking, monkeypatch: pytest.MonkeyPatch) -> None:
    taking.file.create(taking.theirs)
    monkeypatch.setattr(LeaseFile, "read_lease", lambda self: None)  # as the lease was an instant ago
    with pytest.raises(LogdirLocked, match=str(taking.paths.logdir)):
        taking.take()


def test_a_dead_runs_lease_from_this_boot_is_taken_at_once(taking: Taking) -> None:
    taking.file.create(msgspec.structs.replace(taking.ours, run="1" * 16, pid=2**22))
    assert taking.take() is None
    assert taking.file.holder() == taking.ours
    assert taking.clock.now_s == 0.0


def test_without_locks_a_living_process_keeps_its_lease_and_a_dead_one_does_not(taking: Taking) -> None:
    mine = msgspec.structs.replace(taking.ours, run="1" * 16)
    taking.file.create(mine)
    with pytest.raises(LogdirLocked, match=rf"process {os.getpid()} \(python train.py\) runs it since") as caught:
        taking.take(has_lock=False)
    assert caught.value.exit_code == 73

    taking.file.take_lease(msgspec.structs.replace(mine, started=mine.started + 1.0))  # a later process has its pid
    assert taking.take(has_lock=False) is None
    assert taking.clock.now_s == SETTLE_S


@pytest.mark.parametrize(("age_s", "watched_s"), [(0.0, LEASE_S), (LEASE_S + 10.0, LEASE_S_LOOKS_OLD)])
def test_another_machines_lease_is_taken_over_once_it_is_no_longer_renewed(
    taking: Taking, age_s: float, watched_s: float
) -> None:
    taking.file.create(taking.theirs)
    written = taking.paths.lease.stat().st_mtime - age_s
    os.utime(taking.paths.lease, (written, written))

    assert taking.take() == taking.theirs
    assert taking.clock.now_s == watched_s + SETTLE_S
    assert taking.file.holder() == taking.ours
    assert taking.said == [
        Naming(f"process {os.getpid()} on node17 (procsv launch) ", str(taking.paths.logdir), f" {watched_s:.0f} s"),
        Naming(f"process {os.getpid()} on node17 (procsv launch) ", "over"),
    ]


def test_a_member_gets_its_place_at_once_on_any_machine_because_its_coordinator_decides_who_is_heard(
    taking: Taking,
) -> None:
    taking.file.create(taking.theirs)

    assert taking.take(watches=False) == taking.theirs
    assert taking.file.holder() == taking.ours
    assert (taking.clock.now_s, taking.said) == (0.0, [])


def test_another_machines_renewed_lease_is_a_refusal_that_names_it(taking: Taking) -> None:
    taking.file.create(taking.theirs)

    def renew() -> None:
        if taking.clock.now_s >= 5.0:
            taking.file.take_lease(msgspec.structs.replace(taking.theirs, renewed=taking.clock.now_s))

    taking.meanwhile = renew
    with pytest.raises(LogdirLocked, match=r"process \d+ on node17 \(procsv launch\) "):
        taking.take()
    assert taking.clock.now_s == 5.0
    holder = taking.file.holder()
    assert holder is not None
    assert holder.run == taking.theirs.run


def test_control_characters_in_a_lease_are_shown_as_text(taking: Taking) -> None:
    taking.file.create(msgspec.structs.replace(taking.theirs, what="\x1b[2Jx"))
    taking.take()
    assert "\x1b" not in "".join(taking.said)


def test_a_file_that_is_not_a_lease_is_watched_as_if_it_were_one(taking: Taking) -> None:
    taking.paths.lease.write_bytes(b"\xff")
    assert taking.take() is None
    assert taking.clock.now_s >= LEASE_S
    assert taking.file.holder() == taking.ours


def test_a_lease_removed_while_it_is_watched_is_still_watched(taking: Taking) -> None:
    taking.file.create(taking.theirs)
    taking.meanwhile = lambda: taking.file.remove(taking.theirs.run)
    assert taking.take() == taking.theirs
    assert taking.clock.now_s >= LEASE_S


def test_of_two_that_take_over_at_once_the_later_one_has_it(taking: Taking) -> None:
    taking.file.create(taking.theirs)
    third = msgspec.structs.replace(taking.theirs, run="2" * 16, place=ProcessSpace("node18", "b", "p"))
    taking.meanwhile = lambda: taking.file.take_lease(third) if taking.clock.now_s > LEASE_S else None
    with pytest.raises(LogdirLocked, match="node18"):
        taking.take()
    assert taking.file.holder() == third
