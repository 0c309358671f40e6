"""The logdir stays ours while the launches of a run on several machines are waited for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from procsv.base.errors import LogdirLocked
from procsv.base.run.lease import RENEW_S, Lease, LeaseFile, ProcessSpace
from procsv.base.run.paths import find_paths
from procsv.watchdog.edge.opening.held_logdir import wait_with_lease
from tests.support.fake_clock import FakeClock

OURS = Lease(run="0" * 16, place=ProcessSpace("here", "boot", "p"), pid=12, started=3.5, what="procsv launch train.py")
THEIRS = msgspec.structs.replace(OURS, run="1" * 16, place=ProcessSpace("node17", "another boot", "p"))


def test_the_lease_is_renewed_during_the_wait_so_that_nobody_takes_us_for_dead(tmp_path: Path) -> None:
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

    file.take_lease(THEIRS)
    with pytest.raises(LogdirLocked, match="node17"):
        wait(RENEW_S)
    assert file.holder() == THEIRS
