"""The snapshot interval keeps the cost below its share, however the costs are measured."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsv.ipc.shm.heartbeat import Spacing
from procsv.training.snapshots.cadence import COST_SHARE_MAX, INTERVAL_S_MAX, INTERVAL_S_MIN, Cadence

costs = st.lists(st.floats(0.0001, 10.0), min_size=1, max_size=20)


@given(costs)
def test_auto_keeps_the_cost_under_its_share_of_the_time(stalls: list[float]) -> None:
    cadence = Cadence(None)
    for stall in (stalls[0], *stalls):
        cadence.learn(stall, 0.0)

    assert INTERVAL_S_MIN <= cadence.told().interval_s <= INTERVAL_S_MAX
    if INTERVAL_S_MIN < cadence.told().interval_s < INTERVAL_S_MAX:
        assert cadence.cost_s / cadence.told().interval_s == pytest.approx(COST_SHARE_MAX)


def test_auto_starts_with_a_snapshot_after_a_tenth_of_a_second_and_never_takes_two_in_less_than_two_steps() -> None:
    assert Cadence(None).told().interval_s == 0.1
    cadence = Cadence(None)
    cadence.learn(0.0005, 0.001, None, step_s=0.04)
    assert cadence.told().interval_s == 0.1
    cadence.learn(0.0005, 0.001, None, step_s=3.0)
    assert cadence.told().interval_s == 6.0
    assert cadence.told().spacing is Spacing.AUTO_LEAST


def test_delayed_steps_beside_a_copy_count_in_full_and_a_copy_that_delays_no_step_by_a_tenth_of_its_time() -> None:
    cadence = Cadence(None)
    for _ in range(2):
        cadence.learn(0.002, 0.1)
    assert cadence.told().interval_s == pytest.approx((0.002 + 0.01) / 0.01)
    for _ in range(2):
        cadence.learn(0.002, 0.1, lost_s=0.05)
    assert cadence.told().interval_s == pytest.approx((0.002 + 0.05) / 0.01)
    for _ in range(32):
        cadence.learn(0.002, 0.1, lost_s=-0.02)
    assert cadence.told().interval_s == pytest.approx((0.002 + 0.01) / 0.01), (
        "a step that happens to be shorter pays for nothing"
    )


def test_a_slow_first_capture_of_a_process_is_forgotten_with_the_second() -> None:
    cadence = Cadence(None)
    cadence.learn(0.05, 0.0)
    assert cadence.told().interval_s == pytest.approx(1.0), "a twentieth of the time"
    cadence.learn(0.0005, 0.0)
    assert (cadence.told().interval_s, cadence.mean_stall_s) == (INTERVAL_S_MIN, 0.0005)


def test_without_memory_one_snapshot_a_minute_may_cost_a_twentieth_of_the_time_and_cheaper_ones_as_usual() -> None:
    chosen_s = []
    for stall_s in (0.2, 0.5, 2.0, 4.0, 10.0, 100.0):
        cadence = Cadence(None, is_staged=True)
        for _ in range(3):
            cadence.learn(stall_s, 0.0)
        chosen_s.append(cadence.told().interval_s)
    assert chosen_s == pytest.approx([20.0, 50.0, 60.0, 80.0, 200.0, 600.0])


def test_one_outlying_step_proves_nothing() -> None:
    cadence = Cadence(None)
    cadence.learn(0.0005, 0.001, lost_s=0.1)
    assert cadence.told().interval_s == 0.1
    cadence.learn(0.0005, 0.001, lost_s=0.0)
    assert cadence.told().interval_s == 0.1


@pytest.mark.parametrize("seed", range(10))
def test_noise_far_above_a_small_snapshots_cost_does_not_make_snapshots_rare(seed: int) -> None:
    chance, cadence, intervals_s = random.Random(seed), Cadence(None), list[float]()
    for _ in range(200):
        cadence.learn(0.0005, 0.001, lost_s=chance.gauss(0.0, 0.01))  # two steps of 40 ms, each 7 ms longer or shorter
        intervals_s.append(cadence.told().interval_s)
    assert sorted(intervals_s)[150] <= 0.25


def test_a_constant_cost_is_seen_through_noise_of_its_size() -> None:
    chance, cadence = random.Random(5), Cadence(None)
    for _ in range(32):
        cadence.learn(0.0005, 0.001, lost_s=chance.gauss(0.02, 0.02))
    assert 1.2 < cadence.told().interval_s < 2.5


def test_snapshots_made_as_files_are_at_least_a_second_apart() -> None:
    assert Cadence(None, least_s=1.0).told().interval_s == 1.0


def test_every_checkpoint_has_a_snapshot() -> None:
    assert Cadence(60.0, at_most_s=10.0).told().interval_s == 10.0
    slow = Cadence(None, at_most_s=10.0)
    slow.learn(5.0, 50.0)
    assert slow.told().interval_s == 10.0


def test_a_fixed_interval_is_used_unchanged() -> None:
    cadence = Cadence(0.25)
    cadence.learn(3.0, 3.0)

    assert cadence.told().interval_s == 0.25


def test_the_chosen_interval_is_reported_with_its_reason() -> None:
    def choice(cadence: Cadence, cost_s: float) -> tuple[Spacing, float]:
        for _ in range(2):
            cadence.learn(cost_s / 4, cost_s * 30 / 4)
        told = cadence.told()
        assert (told.taken, told.stall_s, told.mean_stall_s) == (2, cost_s / 4, cost_s / 4)
        assert told.mean_cost_s == pytest.approx(cost_s)
        return told.spacing, round(told.interval_s, 6)

    assert choice(Cadence(None), 0.0004) == (Spacing.AUTO_LEAST, INTERVAL_S_MIN)
    assert choice(Cadence(None), 0.04) == (Spacing.AUTO_COST, 4.0)
    assert choice(Cadence(None), 40.0) == (Spacing.AUTO_MOST, INTERVAL_S_MAX)
    assert choice(Cadence(None, at_most_s=3.0), 0.04) == (Spacing.CHECKPOINTS, 3.0)
    assert choice(Cadence(0.5, at_most_s=3.0), 0.04) == (Spacing.TOLD, 0.5)
    assert choice(Cadence(0.0, at_most_s=3.0), 0.04) == (Spacing.CHECKPOINTS, 3.0)
    assert choice(Cadence(0.0), 0.04) == (Spacing.OFF, 0.0)


# -- copies on another machine -----------------------------------------------------------------------------------
def lost_at_worst(
    cadence: Cadence, step_s: float, copy_s: float, travel_s: float, snapshots: int = 40, heard: int = 40
) -> list[float]:
    """Return for each snapshot, once copies count, the age of the other machine's newest copy when
    it gets this one.

    Steps, copying and travel take the given times; the chief hears of the first `heard` copies.
    """
    captured_s, kept_s, due_s, news = list[float](), list[float](), 0.0, list[tuple[float, int]]()
    for sequence in range(1, snapshots + 1):
        captured_s.append(step_s * math.ceil(round(due_s / step_s, 6)))
        published_s = captured_s[-1] + copy_s
        kept_s.append(published_s + travel_s)
        cadence.copies.captured(sequence, captured_s[-1])
        while news and news[0][0] <= published_s:
            told_s, told = news.pop(0)
            cadence.copies.kept(told, told_s)
        if sequence <= heard:
            news.append((kept_s[-1], sequence))
        cadence.learn(0.0, copy_s, None, step_s)
        next_s = cadence.next_due_s(published_s, sequence)
        assert next_s is not None
        due_s = next_s
    return [kept - before for kept, before in zip(kept_s[6:], captured_s[5:], strict=False)]


@given(
    st.floats(0.2, 100.0),
    st.floats(0.001, 0.2),
    st.floats(0.0, 0.1),
    st.floats(0.001, 0.1),
)
def test_with_a_copy_on_another_machine_a_fixed_interval_is_the_most_that_a_loss_costs(
    interval_s: float, step_share: float, copy_share: float, travel_share: float
) -> None:
    step_s, copy_s, travel_s = step_share * interval_s, copy_share * interval_s, travel_share * interval_s
    cadence = Cadence(interval_s)
    worst_s = lost_at_worst(cadence, step_s, copy_s, travel_s)
    assert max(worst_s) <= interval_s * (1 + 1e-6)
    assert min(worst_s) >= interval_s / 2, "nor are they taken closer than that needs"
    assert cadence.told().interval_s == interval_s, "what was told is kept, and told"


@given(st.floats(0.001, 1.0), st.floats(0.0, 0.01), st.floats(0.001, 0.2))
def test_with_a_copy_on_another_machine_auto_takes_no_more_and_reports_the_most_that_a_loss_costs(
    step_s: float, copy_s: float, travel_s: float
) -> None:
    cadence, alone = Cadence(None), Cadence(None)
    for _ in range(2):
        alone.learn(0.0, copy_s, None, step_s)
    worst_s = lost_at_worst(cadence, step_s, copy_s, travel_s)
    assert max(worst_s) <= cadence.told().interval_s * (1 + 1e-6)
    assert cadence.told().apart_s == pytest.approx(alone.told().interval_s)


def test_a_copy_too_slow_for_the_interval_never_doubles_the_cost_of_snapshots() -> None:
    cadence = Cadence(1.0)
    cadence.copies.captured(1, 0.0)
    cadence.copies.kept(1, 0.9)
    cadence.copies.captured(2, 10.0)
    assert cadence.next_due_s(10.4, 2) == 10.9, "half an interval without a snapshot being copied"
    assert cadence.told().apart_s == 0.5


def test_snapshots_do_not_get_closer_for_copies_that_take_longer_than_the_whole_interval() -> None:
    cadence = Cadence(1.0)
    cadence.copies.captured(1, 0.0)
    cadence.copies.kept(1, 1.1)
    cadence.copies.captured(2, 10.0)
    assert (cadence.next_due_s(10.4, 2), cadence.told().apart_s) == (11.4, 1.0)


def test_copies_that_stop_coming_stop_counting() -> None:
    kept, lost = Cadence(1.0), Cadence(1.0)
    assert max(lost_at_worst(kept, 0.01, 0.05, 0.1)) <= 1.0
    assert lost_at_worst(lost, 0.01, 0.05, 0.1, heard=10)[-1] == pytest.approx(1.2, abs=0.02)
    assert (kept.told().apart_s < 0.9, lost.told().apart_s) == (True, 1.0)


def test_a_copy_of_another_snapshot_says_nothing() -> None:
    cadence = Cadence(1.0)
    cadence.copies.captured(5, 0.0)
    cadence.copies.kept(4, 0.5)
    assert cadence.copies.lag_s == 0.0
    assert cadence.next_due_s(0.1, 5) == 1.1


def test_with_one_snapshot_a_checkpoint_it_is_taken_when_it_would_be_without_a_copy() -> None:
    cadence = Cadence(0.0, at_most_s=10.0)
    cadence.copies.captured(1, 0.0)
    cadence.copies.kept(1, 1.0)
    assert (cadence.next_due_s(0.2, 1), cadence.told().interval_s) == (10.2, 10.0)
    assert Cadence(0.0).next_due_s(0.2, 1) is None
