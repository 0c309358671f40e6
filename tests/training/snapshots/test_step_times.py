"""The delay of steps beside a snapshot is measured."""

from __future__ import annotations

import pytest

from procsv.training.snapshots.boundary import CallTimes


def quiet(*seconds: float) -> CallTimes:
    times = CallTimes()
    for call_s in seconds:
        times.add_call(call_s)
    return times


def test_steps_from_a_capture_to_the_end_of_its_copy_are_compared_with_the_others() -> None:
    times = quiet(*[0.010] * 9)
    times.captured()
    times.add_call(0.014)
    times.add_call(0.011)
    assert times.take_lost() is None, "it is still being copied"
    times.copied()
    times.add_call(0.012)
    assert times.take_lost() == pytest.approx(0.007)
    assert times.take_lost() is None, "told once"
    times.add_call(0.5)
    assert times.take_lost() is None


def test_a_different_kind_of_call_is_not_charged_to_the_snapshot_in_full() -> None:
    times = quiet(*[0.010] * 9)
    times.captured()
    times.copied()
    times.add_call(7.0)
    assert times.take_lost() == pytest.approx(0.040)


def test_where_some_calls_are_always_slow_no_snapshot_is_blamed() -> None:
    times = quiet(*[0.010] * 9, 7.0)
    assert times.median_s == 0.010
    for _ in range(9):
        times.captured()
        times.copied()
        times.add_call(0.010)
        assert times.take_lost() == pytest.approx(-0.004), "shorter than the mean"
    times.captured()
    times.copied()
    times.add_call(7.0)
    assert times.take_lost() == pytest.approx(9 * 0.004), "all together, nothing"


def test_a_handful_of_steps_says_nothing() -> None:
    times = quiet(*[0.010] * 4)
    times.captured()
    times.copied()
    times.add_call(0.014)
    assert (times.median_s, times.take_lost()) == (0.0, None)
    times.add_call(0.010)
    assert times.median_s == 0.010


def test_old_steps_are_forgotten() -> None:
    times = quiet(*[1.0] * 100, *[0.010] * 31)
    assert times.median_s == 0.010
