"""How often snapshots are taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsv.ipc.shm.heartbeat import Spacing
from procsv.training.snapshots.cadence import COST_SHARE_MAX, INTERVAL_S_MAX, INTERVAL_S_MIN, Cadence

costs = st.lists(st.floats(0.0001, 10.0), min_size=1, max_size=20)


@given(costs)
def test_auto_keeps_the_cost_under_its_share_of_the_time(stalls: list[float]) -> None:
    cadence = Cadence(None)
    for stall in stalls:
        cadence.learn(stall, 0.0)

    assert INTERVAL_S_MIN <= cadence.interval_s <= INTERVAL_S_MAX
    if INTERVAL_S_MIN < cadence.interval_s < INTERVAL_S_MAX:
        assert cadence.cost_s / cadence.interval_s == pytest.approx(COST_SHARE_MAX)


def test_auto_begins_with_a_snapshot_a_second() -> None:
    assert Cadence(None).interval_s == INTERVAL_S_MIN


def test_there_is_a_snapshot_for_every_checkpoint() -> None:
    assert Cadence(60.0, at_most_s=10.0).interval_s == 10.0
    slow = Cadence(None, at_most_s=10.0)
    slow.learn(5.0, 5.0)
    assert slow.interval_s == 10.0


def test_a_fixed_interval_is_taken_as_it_is() -> None:
    cadence = Cadence(0.25)
    cadence.learn(3.0, 3.0)

    assert cadence.interval_s == 0.25


def test_what_was_chosen_is_told_with_what_decided_it() -> None:
    def choice(cadence: Cadence, cost_s: float) -> tuple[Spacing, float]:
        cadence.learn(cost_s / 4, cost_s * 3 / 4)
        told = cadence.told()
        assert (told.taken, told.stall_s, told.mean_stall_s) == (1, cost_s / 4, cost_s / 4)
        assert told.mean_cost_s == cost_s
        return told.spacing, round(told.interval_s, 6)

    assert choice(Cadence(None), 0.004) == (Spacing.AUTO_LEAST, INTERVAL_S_MIN)
    assert choice(Cadence(None), 0.04) == (Spacing.AUTO_COST, 4.0)
    assert choice(Cadence(None), 40.0) == (Spacing.AUTO_MOST, INTERVAL_S_MAX)
    assert choice(Cadence(None, at_most_s=3.0), 0.04) == (Spacing.CHECKPOINTS, 3.0)
    assert choice(Cadence(0.5, at_most_s=3.0), 0.04) == (Spacing.TOLD, 0.5)
    assert choice(Cadence(0.0, at_most_s=3.0), 0.04) == (Spacing.CHECKPOINTS, 3.0)
    assert choice(Cadence(0.0), 0.04) == (Spacing.OFF, 0.0)
