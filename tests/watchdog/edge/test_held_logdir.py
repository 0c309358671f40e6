"""The logdir that is in hand while the launches of a run on several machines are waited for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from procsv.base.errors import LogdirLocked
from procsv.base.run.lease import RENEW_S, Lease, LeaseFile, Place
from procsv.base.run.paths import find_paths
from procsv.base.system.locks import DirectoryLock
from procsv.watchdog.edge.resources.held_logdir import HeldLogdir, wait_with_lease
from tests.support.fake_clock import FakeClock

OURS = Lease(run="0" * 16, place=Place("here", "boot", "p"), pid=12, started=3.5, what="procsv launch train.py")
THEIRS = msgspec.structs.replace(OURS, run="1" * 16, place=Place("node17", "another boot", "p"))


def test_its_lease_is_renewed_meanwhile_so_that_nobody_takes_us_for_dead(tmp_path: Path) -> None:
    paths, clock = find_paths(tmp_path), FakeClock()
    paths.home.mkdir(parents=True)
    file = LeaseFile(paths)
    file.create(OURS)

    def pass_time(seconds: float) -> None:
        clock.advance(seconds)

    wait = wait_with_lease(paths, OURS, clock, pass_time)

    for _ in range(3):
        wait(RENEW_S)
        held = file.holder()
        assert held is not None
        assert held.renewed == clock.wall()

    file.replace(THEIRS)
    with pytest.raises(LogdirLocked, match="node17"):
        wait(RENEW_S)
    assert file.holder() == THEIRS


def test_it_is_no_longer_ours_as_soon_as_another_machine_has_its_lease_whatever_our_clock_says(tmp_path: Path) -> None:
    paths, clock = find_paths(tmp_path), FakeClock()
    paths.home.mkdir(parents=True)
    file = LeaseFile(paths)
    file.create(OURS)
    held = HeldLogdir(paths, OURS, DirectoryLock(paths.home), clock)
    assert held.is_ours()

    file.replace(THEIRS)

    assert not held.is_ours()
    assert held.keep(clock.monotonic()) == "", "it is not time yet to renew the lease"
