"""A few seconds of `scripts/soak`: nothing grows, and nothing is lost or left behind."""

import tempfile
from pathlib import Path

import pytest

from scripts.soaking.bystanders import soak_by_bystanders
from scripts.soaking.group import soak_by_group
from scripts.soaking.kills import soak_by_kills
from scripts.soaking.mixed import soak_by_mixed_trouble
from scripts.soaking.template import soak_by_forks

MINUTES = 0.25
EVERY_S = 2.5


@pytest.mark.fault
@pytest.mark.long
def test_nothing_grows_and_nothing_is_lost_while_processes_are_killed_every_few_seconds(tmp_path: Path) -> None:
    assert soak_by_kills(tmp_path / "digits", MINUTES, EVERY_S, seed=3) == []


@pytest.mark.fault
@pytest.mark.long
def test_nothing_is_lost_wrong_or_left_behind_after_several_kinds_of_trouble(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="psv-", dir="/tmp") as place:  # short: socket paths have 107 bytes
        assert soak_by_mixed_trouble(Path(place) / "ground", MINUTES, EVERY_S, seed=5) == []


@pytest.mark.fault
@pytest.mark.long
def test_forks_of_one_standby_train_one_after_the_other(tmp_path: Path) -> None:
    assert soak_by_forks(tmp_path / "digits", forks=2) == []


@pytest.mark.fault
@pytest.mark.long
def test_a_program_that_does_not_train_is_not_ended_for_a_hang(tmp_path: Path) -> None:
    assert soak_by_bystanders(tmp_path / "programs", MINUTES) == []


@pytest.mark.fault
@pytest.mark.long
def test_no_task_of_a_healthy_run_is_ended_or_restarted(tmp_path: Path) -> None:
    assert soak_by_group(tmp_path / "group", MINUTES) == []
