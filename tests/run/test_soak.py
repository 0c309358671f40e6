"""The soak that `scripts/soak` makes as long as one likes, for some seconds: nothing grows, nothing is lost or left."""

from pathlib import Path

import pytest

from scripts.soaking.__main__ import soak

MINUTES = 0.25
EVERY_S = 2.5


@pytest.mark.fault
@pytest.mark.slow
def test_nothing_grows_and_nothing_is_lost_while_processes_are_killed_every_few_seconds(tmp_path: Path) -> None:
    assert soak(tmp_path / "digits", MINUTES, EVERY_S, seed=3) == []
