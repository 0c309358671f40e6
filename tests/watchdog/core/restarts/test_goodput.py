"""Goodput is the share of a launch's or run's time whose training is kept."""

from __future__ import annotations

import pytest

from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.watchdog.core.restarts.goodput import Attempts, CountedAttempt, Earlier, Goodput
from tests.support.naming import Naming


def trained(first: int = 5, earlier: Earlier | None = None) -> Goodput:
    """Return a launch from second 100 whose trainer finished step `first` in second 110."""
    goodput = Goodput(100.0, earlier or Earlier())
    goodput.start_training(110.0, first)
    return goodput


@pytest.mark.parametrize(
    ("resume_step", "kept_s"), [(25, 20.0), (24, 19.0), (20, 15.0), (6, 1.0), (5, 0.0), (4, 0.0), (-1, 0.0), (30, 20.0)]
)
def test_an_attempt_keeps_the_share_of_its_steps_that_the_next_one_need_not_repeat(
    resume_step: int, kept_s: float
) -> None:
    goodput = trained()
    assert goodput.end_training(130.0, 25, resume_step) == pytest.approx(kept_s)
    assert goodput.value(140.0) == goodput.of_launch(140.0) == pytest.approx(kept_s / 40.0, abs=1e-4)


@pytest.mark.parametrize("last_step", [4, 5])
def test_an_attempt_without_steps_keeps_nothing_and_one_with_a_step_does(last_step: int) -> None:
    assert trained().end_training(130.0, last_step, last_step) == 0.0
    assert trained().end_training(130.0, 6, 6) == 20.0


def test_an_ended_attempt_keeps_nothing_more_and_one_that_never_trained_keeps_nothing() -> None:
    goodput = trained()
    assert goodput.end_training(130.0, 25, 25) == 20.0
    assert goodput.end_training(150.0, 25, 25) == 0.0
    goodput.stood_still(5.0)
    assert goodput.value(140.0) == 0.5
    assert Goodput(100.0).end_training(150.0, 25, 25) == 0.0
    assert Goodput(100.0).value(150.0) == 0.0


def test_attempts_add_up_and_the_running_one_counts_up_to_now() -> None:
    goodput = trained()
    goodput.end_training(130.0, 25, 25)
    goodput.start_training(140.0, 26)
    assert goodput.value(150.0) == 0.6
    goodput.end_training(150.0, 36, 36)
    assert goodput.value(160.0) == 0.5


def test_time_standing_still_is_not_training_even_if_it_exceeds_the_rest() -> None:
    goodput = trained()
    goodput.stood_still(5.0)
    assert goodput.value(120.0) == 0.25
    goodput.stood_still(50.0)
    assert goodput.value(120.0) == 0.0
    assert goodput.end_training(130.0, 25, 25) == 0.0
    assert goodput.value(130.0) == 0.0


def test_a_runs_value_includes_earlier_launches_and_a_launchs_does_not() -> None:
    goodput = trained(earlier=Earlier(kept_s=50.0, ran_s=80.0))
    assert goodput.value(120.0) == 0.6
    assert goodput.of_launch(120.0) == 0.5


def test_a_value_is_a_share_of_1_with_four_digits_from_the_first_instant_on() -> None:
    assert Goodput(100.0).value(100.0) == 0.0
    assert Goodput(100.0, Earlier(0.25, 0.5)).value(100.0) == 0.5
    assert Goodput(100.0, Earlier(100.0, 300.0)).value(100.0) == 0.3333
    assert Goodput(100.0, Earlier(90.0, 30.0)).value(100.0) == 1.0


# -- useful progress ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kept_s", "is_given_up"), [(59.9, True), (60.0, False)])
def test_a_minute_of_kept_training_ends_a_row_of_failures(kept_s: float, is_given_up: bool) -> None:
    past = Attempts(LaunchSettings())
    whys = [past.add_attempt(CountedAttempt(100.0, seconds, "boom")) for seconds in (1.0, 1.0, 1.0, 1.0, kept_s)]
    assert bool(whys[-1]) is is_given_up


def test_a_single_failure_can_be_the_limit_and_is_named() -> None:
    past = Attempts(LaunchSettings(repeated_failures=1))
    assert past.add_attempt(CountedAttempt(9.0, 1.0, "boom")) == Naming("no useful progress: boom, with 1.0 s ")


@pytest.mark.parametrize(("limit", "remembered"), [(0, 1), (7, 7)])
def test_only_as_many_equal_failures_are_remembered_as_are_needed(limit: int, remembered: int) -> None:
    past = Attempts(LaunchSettings(repeated_failures=limit, min_goodput=0.0))
    whys = [past.add_attempt(CountedAttempt(9.0, 1.0, "boom")) for _ in range(20)]
    assert [bool(why) for why in whys] == [0 < limit <= number for number in range(1, 21)]
    assert len(past._row) == remembered


def test_attempts_with_exactly_the_required_goodput_continue() -> None:
    past = Attempts(LaunchSettings(min_goodput=0.5, goodput_attempts=2, repeated_failures=0))
    assert [past.add_attempt(CountedAttempt(10.0, kept_s, "boom")) for kept_s in (5.0, 5.0, 4.9)][:2] == ["", ""]
    assert past.add_attempt(CountedAttempt(10.0, 5.0, "boom")), "the last two have kept 9.9 s of 20 s"


@pytest.mark.parametrize(("kept_s", "counts"), [(5.0, True), (4.9, False)])
def test_an_attempt_that_ended_as_planned_counts_if_it_has_at_least_the_required_goodput(
    kept_s: float, counts: bool
) -> None:
    past = Attempts(LaunchSettings(min_goodput=0.5, goodput_attempts=2))
    past.add_attempt(CountedAttempt(10.0, kept_s))
    assert bool(past.add_attempt(CountedAttempt(10.0, 4.0, "boom"))) is counts


def test_only_as_many_attempts_count_as_are_needed() -> None:
    past = Attempts(LaunchSettings(min_goodput=0.5, goodput_attempts=2, repeated_failures=0))
    past.add_attempt(CountedAttempt(10.0, 10.0, "first"))
    assert past.add_attempt(CountedAttempt(10.0, 1.0, "second")) == ""
    why = past.add_attempt(CountedAttempt(10.0, 1.0, "second"))
    assert why == Naming("last 2 attempts 2.0 s of 20 s ", " 2 times, ", "second")


def test_what_is_forgiven_is_forgotten() -> None:
    row, share = (
        Attempts(LaunchSettings(repeated_failures=2)),
        Attempts(LaunchSettings(repeated_failures=0, min_goodput=0.5, goodput_attempts=2)),
    )
    for past in (row, share):
        assert past.add_attempt(CountedAttempt(10.0, 0.0, "boom")) == ""
        past.forget_attempts()
        assert past.add_attempt(CountedAttempt(10.0, 0.0, "boom")) == ""
        assert past.add_attempt(CountedAttempt(10.0, 0.0, "boom"))
