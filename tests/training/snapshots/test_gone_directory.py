"""The end of a program waits a limited time for its directory to come back."""

from __future__ import annotations

from pathlib import Path

from procsv.training.snapshots.training_run import GONE_S_MAX, GoneDirectory
from tests.support.fake_clock import FakeClock


def test_a_directory_is_given_up_once_it_has_been_gone_long_enough_without_a_break(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "logdir"
    gone = GoneDirectory(path, clock)
    assert not gone.is_given_up()
    clock.advance(GONE_S_MAX - 0.1)
    assert not gone.is_given_up()
    path.mkdir()
    assert not gone.is_given_up()
    path.rmdir()
    clock.advance(1.0)
    assert not gone.is_given_up(), "it was back meanwhile"
    clock.advance(GONE_S_MAX)
    assert gone.is_given_up()


def test_without_a_directory_nothing_is_given_up() -> None:
    clock = FakeClock()
    gone = GoneDirectory(None, clock)
    clock.advance(1e6)
    assert not gone.is_given_up()
