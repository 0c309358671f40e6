"""The time that a step may take is learned from earlier steps, kept across attempts, or set by the user."""

from __future__ import annotations

import random
import statistics

import pytest

from procsv.ipc.messaging.launch_settings import HANG_LIMITS_S, LaunchSettings
from procsv.ipc.shm.heartbeat import Phase
from procsv.watchdog.core.hangs.trainer_liveness import STEPS_KNOWN_MAX, STEPS_KNOWN_MIN, StepTimes
from tests.watchdog.core.hangs.watched import Trainer


@pytest.mark.parametrize(
    ("step_s", "limit_s"), [(0.01, 120.0), (1.0, 120.0), (10.0, 200.0), (60.0, 1200.0), (100.0, 1800.0)]
)
def test_a_step_may_take_twenty_times_the_median_within_bounds(step_s: float, limit_s: float) -> None:
    trainer = Trainer().trains(10, step_s)

    assert trainer.liveness.steps.median_s == pytest.approx(step_s)
    assert trainer.liveness.limit_s(Phase.STEP) == pytest.approx(limit_s)


def test_fast_steps_are_measured_between_two_looks() -> None:
    trainer = Trainer().says(Phase.STEP, 0)
    for look in range(1, 11):
        trainer.passes(0.5)
        trainer.says(Phase.STEP, look * 100)

    assert trainer.liveness.steps.median_s == pytest.approx(0.005)


def test_one_slow_step_among_many_moves_the_limit_little() -> None:
    trainer = Trainer().trains(50, 10.0)
    trainer.trains(1, 190.0)

    assert trainer.liveness.limit_s(Phase.STEP) == pytest.approx(200.0)


def test_the_median_covers_the_most_recent_steps() -> None:
    rng, steps, measured = random.Random(3), StepTimes(), list[float]()
    for count in range(1, 3 * STEPS_KNOWN_MAX):
        measured.append(rng.choice([0.1, 0.2, rng.random()]))
        steps.add_step(measured[-1])
        if count >= STEPS_KNOWN_MIN:
            assert steps.median_s == statistics.median(measured[-STEPS_KNOWN_MAX:])


def test_calls_that_end_are_progress_though_the_step_does_not_change() -> None:
    trainer = Trainer().trains(10, 1.0)
    for call in range(100):
        assert trainer.passes(100.0) is None  # an evaluation: each call is below the limit, all together far beyond
        trainer.says(Phase.STEP, 10, 1000 + call)


def test_the_step_time_survives_the_trainer_and_the_launch() -> None:
    trainer = Trainer().trains(10, 10.0)
    trainer.liveness.start_watch(trainer.now_s)

    assert trainer.liveness.limit_s(Phase.STEP) == pytest.approx(200.0)
    assert Trainer(known_s=10.0).liveness.limit_s(Phase.STEP) == pytest.approx(200.0)


def test_a_new_trainer_is_not_charged_for_the_previous_one() -> None:
    trainer = Trainer().trains(10, 1.0)
    assert trainer.passes(119.0) is None
    trainer.beat = None
    trainer.liveness.start_watch(trainer.now_s)

    assert trainer.passes(1799.0) is None


def test_the_time_between_the_death_and_the_next_step_is_not_step_time() -> None:
    trainer = Trainer().trains(10, 1.0)
    for phase in (Phase.RESTORE, Phase.COMPILE):
        trainer.says(phase, 10)
        trainer.passes(200.0)
    trainer.trains(10, 1.0)

    assert trainer.liveness.steps.median_s == pytest.approx(1.0)


def test_the_users_step_limit_applies_to_the_first_step_too() -> None:
    limits = LaunchSettings(hang_timeout_s=3600.0)

    assert Trainer(limits).trains(10, 1.0).passes(3500.0, every_s=5.0) is None
    assert Trainer(limits).liveness.limit_s(Phase.COMPILE) == 3600.0
    assert Trainer(LaunchSettings(hang_timeout_s=3.0)).liveness.limit_s(Phase.COMPILE) == HANG_LIMITS_S["compile"]


def test_the_median_counts_from_the_third_step_on() -> None:
    steps = StepTimes(10.0)
    for seconds, median_s in ((1.0, 10.0), (3.0, 10.0), (2.0, 2.0)):
        steps.add_step(seconds)
        assert steps.median_s == median_s
    assert StepTimes().median_s == 0.0
    assert StepTimes().limit_s == 1800.0


def test_the_median_is_over_the_last_201_steps() -> None:
    steps = StepTimes()
    for seconds in [10.0] * 101 + [1.0] * 201:
        steps.add_step(seconds)
    assert steps.median_s == 1.0
    for _ in range(101):
        steps.add_step(10.0)
    assert steps.median_s == 10.0


def test_a_step_without_a_number_is_measured_by_finished_calls() -> None:
    trainer = Trainer().says(Phase.STEP, -1, 0)
    for calls in (2, 4, 6):
        trainer.passes(10.0)
        trainer.says(Phase.STEP, -1, calls)
    assert trainer.liveness.steps.median_s == pytest.approx(5.0)


def test_calls_without_a_new_step_are_not_steps_and_their_time_belongs_to_the_next_step() -> None:
    trainer = Trainer().says(Phase.STEP, 0, 0)
    for step in (1, 2, 3):
        for call in (1, 2):
            trainer.passes(10.0)
            trainer.says(Phase.STEP, step - (call == 1), 2 * step + call)
    assert trainer.liveness.steps.median_s == pytest.approx(20.0)


def test_the_time_of_a_save_is_not_step_time() -> None:
    trainer = Trainer().trains(2, 1.0)
    for step in range(3, 13):  # a save after each step: counting it, most measurements would be 100 s
        trainer.says(Phase.SAVE, step - 1, 2 * step)
        trainer.passes(100.0)
        trainer.says(Phase.STEP, step - 1, 2 * step + 1)
        trainer.passes(1.0)
        trainer.says(Phase.STEP, step, 2 * step + 2)
    assert trainer.liveness.steps.median_s == pytest.approx(1.0)


def test_a_steps_limit_applies_to_the_first_step_too_and_to_no_other_phase() -> None:
    limits = LaunchSettings(hang_timeout_s=3600.0)
    assert Trainer(limits).liveness.limit_s(Phase.COMPILE) == 3600.0
    assert Trainer(limits).liveness.limit_s(Phase.RESTORE) == 1800.0
    assert Trainer(limits).liveness.limit_s(Phase.PROGRAM) == 3600.0
    assert Trainer(limits).liveness.limit_s(Phase.STEP) == 3600.0
