"""A task that is held from another machine stands no longer than its own limits, and says whether it has stood all the time."""

from __future__ import annotations

import pytest

from procsv.training.holds.frames import Capturing, Held, Here, Hold, LetGo, Probe, Refused, Released, Within
from procsv.training.holds.held_steps import HeldSteps
from procsv.training.holds.limits import LINK_S_MAX
from procsv.training.runtime.step_hold import GATHER_S_MAX, HELD_S_MAX, SETTLE_S

NOW_S = 100.0
HOLD = Hold("chief", 7, 0.5)


def released(number: int, is_whole: bool, held_s: float) -> Released:
    return Released(number, is_whole, pytest.approx(held_s))  # type: ignore[arg-type]  # nearly so


@pytest.fixture
def steps() -> HeldSteps:
    """Of a task that has made steps for a while, and is between two."""
    steps = HeldSteps()
    steps.open_steps(NOW_S - SETTLE_S)
    return steps


def test_a_task_between_two_steps_stands_at_once_and_begins_none_until_it_is_let_go(steps: HeldSteps) -> None:
    assert steps.ordered(HOLD, NOW_S) == Held(7)
    assert steps.wait_s(NOW_S + 0.1) == pytest.approx(0.4)
    assert steps.ordered(LetGo("chief", 7), NOW_S + 0.2) == released(7, True, 0.2)
    assert steps.wait_s(NOW_S + 0.2) == 0.0


def test_a_task_in_a_step_says_so_and_stands_when_it_has_ended(steps: HeldSteps) -> None:
    steps.begin_step()
    assert steps.ordered(HOLD, NOW_S) == Within(7)
    assert steps.end_step(NOW_S + 0.1) == Held(7)
    assert steps.wait_s(NOW_S + 0.1) > 0
    assert steps.ordered(LetGo("chief", 7), NOW_S + 0.3) == released(7, True, 0.2)


def test_a_step_without_a_hold_has_no_news(steps: HeldSteps) -> None:
    steps.begin_step()
    assert steps.end_step(NOW_S) is None
    assert steps.wait_s(NOW_S) == 0.0
    assert steps.due_s is None


def test_a_task_that_is_not_let_go_goes_on_at_the_limit_and_says_that_it_did(steps: HeldSteps) -> None:
    steps.ordered(HOLD, NOW_S)
    assert steps.due_s == NOW_S + 0.5
    assert steps.wait_s(NOW_S + 0.5) == 0.0
    assert steps.ordered(LetGo("chief", 7), NOW_S + 0.6) == released(7, False, 0.5)


def test_a_capture_has_its_own_limit_from_when_the_task_hears_of_it(steps: HeldSteps) -> None:
    steps.ordered(HOLD, NOW_S)
    assert steps.ordered(Capturing("chief", 7, 0.06), NOW_S + 0.4) is None
    assert steps.due_s == pytest.approx(NOW_S + 0.46)
    assert steps.wait_s(NOW_S + 0.47) == 0.0


def test_no_order_keeps_a_task_longer_than_its_own_limits(steps: HeldSteps) -> None:
    steps.ordered(Hold("chief", 1, 3600.0), NOW_S)
    assert steps.due_s == NOW_S + GATHER_S_MAX + LINK_S_MAX
    steps.ordered(Capturing("chief", 1, 3600.0), NOW_S)
    assert steps.due_s == NOW_S + HELD_S_MAX + LINK_S_MAX


def test_a_hold_that_was_over_is_not_taken_up_again_by_a_late_word_of_its_capture(steps: HeldSteps) -> None:
    steps.ordered(HOLD, NOW_S)
    steps.ordered(Capturing("chief", 7, 0.05), NOW_S + 0.5)
    assert steps.wait_s(NOW_S + 0.5) == 0.0
    assert steps.ordered(LetGo("chief", 7), NOW_S + 0.5) == released(7, False, 0.5)


def test_a_step_that_ends_behind_the_limit_is_no_news(steps: HeldSteps) -> None:
    steps.begin_step()
    steps.ordered(HOLD, NOW_S)
    assert steps.end_step(NOW_S + 0.5) is None
    assert steps.ordered(LetGo("chief", 7), NOW_S + 0.6) == Released(7, False, 0.0)


def test_a_step_that_has_not_ended_when_it_is_let_go_was_not_held(steps: HeldSteps) -> None:
    steps.begin_step()
    steps.ordered(HOLD, NOW_S)
    assert steps.ordered(LetGo("chief", 7), NOW_S + 0.1) == Released(7, False, 0.0)
    assert steps.end_step(NOW_S + 0.2) is None


def test_another_hold_ends_the_one_before_and_steps_go_on_between_the_two(steps: HeldSteps) -> None:
    steps.ordered(HOLD, NOW_S)
    assert steps.ordered(Hold("next", 1, 0.5), NOW_S + 0.1) == Refused(1, "was not let go of the hold before")
    assert steps.wait_s(NOW_S + 0.1) == 0.0
    assert isinstance(broken := steps.ordered(LetGo("chief", 7), NOW_S + 0.2), Released)
    assert not broken.is_whole
    assert steps.ordered(Hold("next", 2, 0.5), NOW_S + 0.3) == Held(2)
    steps.ordered(LetGo("chief", 7), NOW_S + 0.4)
    assert steps.wait_s(NOW_S + 0.4) > 0, "nobody lets go of what is another's"
    assert steps.ordered(LetGo("next", 2), NOW_S + 0.5) == released(2, True, 0.2)


def test_a_task_that_has_made_no_step_yet_or_has_just_begun_is_not_held() -> None:
    steps = HeldSteps()
    assert steps.ordered(HOLD, NOW_S) == Refused(7, "has made no step yet that can be held")
    steps.open_steps(NOW_S)
    assert isinstance(steps.ordered(HOLD, NOW_S + SETTLE_S / 2), Refused)
    assert steps.wait_s(NOW_S + SETTLE_S / 2) == 0.0
    steps.open_steps(NOW_S + SETTLE_S)  # of a second session
    assert steps.ordered(HOLD, NOW_S + SETTLE_S) == Held(7)


def test_a_probe_is_answered_and_holds_nobody(steps: HeldSteps) -> None:
    assert steps.ordered(Probe(), NOW_S) == Here()
    assert steps.wait_s(NOW_S) == 0.0
