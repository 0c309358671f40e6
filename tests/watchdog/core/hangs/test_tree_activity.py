"""A program that procsv cannot see into is idle when its processes do nothing."""

from __future__ import annotations

import pytest

from procsv.watchdog.core.hangs.trainer_liveness import TreeActivity

LIMIT_S = 300.0


def looked_at(*looks: tuple[float, int | None], limit_s: float = LIMIT_S) -> TreeActivity:
    activity = TreeActivity()
    for now_s, seen in looks:
        activity.note_activity(seen, limit_s, now_s)
    return activity


@pytest.mark.parametrize(("limit_s", "pause_s"), [(300.0, 10.0), (88.0, 10.0), (80.0, 10.0), (72.0, 9.0), (8.0, 1.0)])
def test_a_look_is_due_every_ten_seconds_or_eight_times_within_the_limit(limit_s: float, pause_s: float) -> None:
    assert TreeActivity().is_due(limit_s, 0.0)
    activity = looked_at((1000.0, 1), limit_s=limit_s)
    assert not activity.is_due(limit_s, 1000.0 + pause_s - 0.1)
    assert activity.is_due(limit_s, 1000.0 + pause_s)


def test_a_process_that_does_nothing_is_idle_from_the_first_look() -> None:
    assert looked_at((1000.0, 1)).idle_s(1000.0) == 0.0
    assert looked_at((1000.0, 1), (1010.0, 1)).idle_s(1010.0) == 10.0
    assert looked_at((1000.0, 1), (1010.0, 1), (1021.0, 1)).idle_s(1021.0) == 21.0


def test_a_process_that_ran_once_is_idle_from_that_look() -> None:
    assert looked_at((1000.0, 1), (1010.0, 1), (1020.0, 2)).idle_s(1020.0) == 0.0
    assert looked_at((1000.0, 1), (1010.0, 1), (1020.0, 2), (1030.0, 2)).idle_s(1030.0) == 10.0


def test_the_state_between_two_looks_is_unknown_and_a_long_pause_counts_as_two() -> None:
    activity = looked_at((1000.0, 1), (1010.0, 1))
    assert activity.idle_s(1010.5) == 0.0
    activity.note_activity(None, LIMIT_S, 1011.0)
    assert activity.idle_s(1011.0) == 0.0
    activity.note_activity(1, LIMIT_S, 1100.0)
    assert activity.idle_s(1100.0) == 30.0
