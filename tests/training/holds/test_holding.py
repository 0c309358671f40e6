"""A chief holds the others only where it knows of all that they can be held, waits for nobody twice, and believes no hold without its end."""

from __future__ import annotations

import pytest

from procsv.base.identity import TaskId
from procsv.ipc.messaging.messages import HoldOffer, HoldTold
from procsv.training.holds.frames import Answer, Capturing, Held, Here, Hold, LetGo, Probe, Released, Within
from procsv.training.holds.holding import Holding
from procsv.training.holds.limits import ASK_S, LINK_S_MAX, RELEASE_S_MAX
from procsv.training.runtime.step_hold import HELD_S_MAX, SETTLE_S

FIRST, SECOND = TaskId("worker", 0), TaskId("worker", 1)
BOTH = (FIRST, SECOND)
OFFER = HoldOffer(2224, "server", "public", "secret")
NOW_S, GATHER_S = 50.0, 0.5


def holding_of(*known: TaskId, is_first: bool = True) -> Holding:
    holding = Holding(BOTH, "chief", NOW_S, is_first=is_first)
    for task in known:
        assert holding.told(HoldTold(task, 1, OFFER), NOW_S)
    return holding


@pytest.fixture
def holding() -> Holding:
    """All are known."""
    return holding_of(*BOTH)


def hear(holding: Holding, *answers: Answer, at_s: float = NOW_S) -> None:
    """From both."""
    for answer in answers:
        for task in BOTH:
            holding.heard(task, answer, at_s)


def hold_once(holding: Holding, number: int, at_s: float) -> str:
    """One in which both say all that they have to; why it was not whole, "" if it was."""
    holding.begin(GATHER_S, at_s)
    hear(holding, Held(number), at_s=at_s)
    holding.gathered(at_s)
    holding.captured(at_s)
    hear(holding, Released(number, True, 0.01), at_s=at_s)
    holding.end()
    return holding.hold.why


def test_a_hold_is_asked_for_captured_and_let_go_of_and_whole_where_all_have_said_so(holding: Holding) -> None:
    limit_s = GATHER_S + LINK_S_MAX
    assert holding.begin(GATHER_S, NOW_S) == [(task, Hold("chief", 1, limit_s)) for task in BOTH]
    assert holding.wait_s(NOW_S) == pytest.approx(limit_s)
    hear(holding, Within(1), Held(1))
    assert holding.wait_s(NOW_S) == 0.0
    assert holding.gathered(NOW_S) == [(task, Capturing("chief", 1, HELD_S_MAX + LINK_S_MAX)) for task in BOTH]
    assert holding.hold.why == ""
    assert holding.captured(NOW_S + 0.01) == [(task, LetGo("chief", 1)) for task in BOTH]
    assert holding.wait_s(NOW_S + 0.01) == pytest.approx(RELEASE_S_MAX)
    hear(holding, Released(1, True, 0.02))
    assert holding.wait_s(NOW_S + 0.01) == 0.0
    holding.end()
    assert holding.hold.is_whole
    assert holding.hold.held_s == 0.02


def test_all_go_on_at_once_where_one_does_not_stand_in_time(holding: Holding) -> None:
    holding.begin(GATHER_S, NOW_S)
    hear(holding, Within(1))
    holding.heard(FIRST, Held(1), NOW_S + 0.1)
    assert holding.wait_s(NOW_S + GATHER_S + LINK_S_MAX) == 0.0
    assert holding.gathered(NOW_S + 0.55) == [(task, LetGo("chief", 1)) for task in BOTH]
    assert "worker.1 was in a step" in holding.hold.why
    assert holding.captured(NOW_S + 0.6) == []
    assert holding.wait_s(NOW_S + 0.6) == 0.0
    holding.end()
    assert not holding.hold.is_whole


def test_a_capture_that_takes_longer_than_steps_are_held_is_not_whole_whatever_they_say(holding: Holding) -> None:
    holding.begin(GATHER_S, NOW_S)
    hear(holding, Held(1))
    holding.gathered(NOW_S)
    holding.captured(NOW_S + HELD_S_MAX + 0.01)
    hear(holding, Released(1, True, 0.06))
    holding.end()
    assert "took longer" in holding.hold.why


def test_the_link_is_allowed_for_as_it_was_measured_at_the_hold_before(holding: Holding) -> None:
    holding.begin(GATHER_S, NOW_S)
    holding.heard(FIRST, Held(1), NOW_S + 0.002)
    holding.heard(SECOND, Held(1), NOW_S + 0.004)
    holding.gathered(NOW_S + 0.004)
    holding.captured(NOW_S + 0.01)
    holding.end()
    (_, order), _ = holding.begin(GATHER_S, NOW_S + 1)
    assert isinstance(order, Hold)
    assert order.limit_s == pytest.approx(GATHER_S + 0.004)


def test_who_has_said_nothing_is_only_asked_whether_it_is_there_until_it_answers(holding: Holding) -> None:
    holding.begin(GATHER_S, NOW_S)
    holding.heard(FIRST, Held(1), NOW_S)
    holding.gathered(NOW_S + 0.55)
    holding.captured(NOW_S + 0.56)
    holding.end()
    assert holding.begin(GATHER_S, NOW_S + 1) == [(SECOND, Probe())]
    assert holding.hold.why == "worker.1 does not answer"
    assert holding.wait_s(NOW_S + 1) == 0.0
    assert holding.gathered(NOW_S + 1) == holding.captured(NOW_S + 1) == []
    holding.end()
    assert not holding.hold.is_whole
    holding.heard(SECOND, Here(), NOW_S + 1.1)
    assert hold_once(holding, 2, NOW_S + 2) == ""


def test_an_answer_to_the_hold_before_says_nothing_of_this_one(holding: Holding) -> None:
    assert hold_once(holding, 1, NOW_S) == ""
    holding.begin(GATHER_S, NOW_S + 1)
    hear(holding, Held(1), Released(1, True, 0.01))
    holding.gathered(NOW_S + 2)
    assert "has not answered" in holding.hold.why


def test_nobody_is_held_as_long_as_one_is_not_known_and_it_is_asked_for_once_a_second() -> None:
    holding = holding_of(FIRST)
    asked = []
    for number in range(5):
        now_s = NOW_S + number * ASK_S / 2
        assert holding.begin(GATHER_S, now_s) == []
        assert holding.hold.why == "it is not known where worker.1 is held"
        asked.append(holding.wants_news)
    assert asked == [False, False, True, False, True]
    holding.told(HoldTold(SECOND, 1, OFFER), NOW_S)
    assert hold_once(holding, 1, NOW_S + 3) == ""
    assert not holding.wants_news


def test_what_cannot_be_reached_is_not_known(holding: Holding) -> None:
    holding.cannot_be_reached(SECOND)
    holding.begin(GATHER_S, NOW_S)
    assert "not known where worker.1" in holding.hold.why
    assert holding.told(HoldTold(SECOND, 1, OFFER), NOW_S), "the same offer may be tried again"


def test_the_newest_attempt_counts_and_its_end_and_nothing_older(holding: Holding) -> None:
    assert not holding.told(HoldTold(FIRST, 1, OFFER), NOW_S)
    assert holding.told(HoldTold(FIRST, 3, OFFER), NOW_S)
    assert not holding.told(HoldTold(FIRST, 2, None), NOW_S)
    assert holding.told(HoldTold(FIRST, 3, None), NOW_S)
    assert not holding.told(HoldTold(FIRST, 3, None), NOW_S)
    assert not holding.told(HoldTold(FIRST, 3, OFFER), NOW_S), "it was told before the end"
    assert not holding.told(HoldTold(TaskId("evaluator", 0), 1, OFFER), NOW_S)


@pytest.mark.parametrize("is_between", [True, False])
def test_who_has_ended_is_not_waited_for_once_nothing_of_it_can_be_under_way(
    holding: Holding, is_between: bool
) -> None:
    for task in BOTH:
        holding.told(HoldTold(task, 1, None, is_between=is_between), NOW_S)
    if not is_between:
        holding.begin(GATHER_S, NOW_S + 0.9 * SETTLE_S)
        assert holding.hold.why == "worker.0 has just ended"
    now_s = NOW_S + SETTLE_S * (not is_between)
    assert holding.begin(GATHER_S, now_s) == []
    assert holding.wait_s(now_s) == 0.0
    assert holding.gathered(now_s) == holding.captured(now_s) == []
    assert holding.wait_s(now_s) == 0.0
    holding.end()
    assert holding.hold.is_whole, "there is nobody else"


def test_a_chief_that_follows_another_holds_nobody_until_the_servers_have_done_the_last_step_of_that_one() -> None:
    holding = holding_of(*BOTH, is_first=False)
    assert holding.begin(GATHER_S, NOW_S + 0.9 * SETTLE_S) == []
    assert "the chief before this one" in holding.hold.why
    assert hold_once(holding, 1, NOW_S + SETTLE_S) == ""
