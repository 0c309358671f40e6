"""A hold over machines is whole only if every task has said so, before the capture and after it."""

from __future__ import annotations

import pytest

from procsv.base.errors import PeerError
from procsv.base.identity import TaskId
from procsv.training.holds.frames import (
    Answer,
    Held,
    Here,
    Hold,
    Refused,
    Released,
    Within,
    pack,
    read_answer,
    read_order,
)
from procsv.training.holds.gathering import Gathering
from procsv.training.holds.limits import LINK_S_MAX, capture_limit_s, gather_limit_s, link_s_of
from procsv.training.runtime.step_hold import GATHER_S_MAX, HELD_S_MAX

FIRST, SECOND = TaskId("worker", 0), TaskId("worker", 1)
NUMBER, BEGUN_S, LIMIT_S = 3, 50.0, 0.5


@pytest.fixture
def gathering() -> Gathering:
    return Gathering((FIRST, SECOND), NUMBER, BEGUN_S, LIMIT_S)


def hear(gathering: Gathering, *said: tuple[TaskId, Answer], at_s: float = BEGUN_S) -> None:
    for task, answer in said:
        gathering.heard(task, answer, at_s)


def whole(number: int = NUMBER) -> Released:
    return Released(number, True, 0.01)


def test_a_hold_of_which_all_say_that_they_stand_and_have_stood_is_whole(gathering: Gathering) -> None:
    hear(gathering, (FIRST, Held(NUMBER)), (SECOND, Within(NUMBER)))
    assert gathering.wait_s(BEGUN_S + 0.1) == pytest.approx(0.4)
    hear(gathering, (SECOND, Held(NUMBER)))
    assert gathering.wait_s(BEGUN_S + 0.1) == 0.0
    assert gathering.why_not_gathered(BEGUN_S + 0.1) == ""
    hear(gathering, (FIRST, whole()), (SECOND, Released(NUMBER, True, 0.03)))
    assert gathering.is_decided
    assert gathering.why_not_whole() == ""
    assert gathering.held_s == 0.03


def test_who_was_in_a_step_and_who_said_nothing_are_told_apart(gathering: Gathering) -> None:
    hear(gathering, (FIRST, Held(NUMBER)), (SECOND, Within(NUMBER)))
    assert gathering.wait_s(BEGUN_S + LIMIT_S) == 0.0
    assert gathering.why_not_gathered(BEGUN_S + LIMIT_S) == "worker.1 was in a step for 0.500 s more"
    assert gathering.silent == []
    other = Gathering((FIRST, SECOND), NUMBER, BEGUN_S, LIMIT_S)
    hear(other, (FIRST, Held(NUMBER)))
    assert other.why_not_gathered(BEGUN_S + LIMIT_S) == "worker.1 has not answered for 0.500 s"
    assert other.silent == [SECOND]


def test_nobody_is_waited_for_once_one_has_refused(gathering: Gathering) -> None:
    hear(gathering, (SECOND, Refused(NUMBER, "has only just begun")))
    assert gathering.wait_s(BEGUN_S) == 0.0
    assert gathering.why_not_gathered(BEGUN_S) == "worker.1 has only just begun"


def test_nobody_is_waited_for_once_one_has_gone_on_too_early(gathering: Gathering) -> None:
    hear(gathering, (FIRST, Held(NUMBER)), (SECOND, Held(NUMBER)))
    assert not gathering.is_decided
    hear(gathering, (FIRST, Released(NUMBER, False, 0.1)))
    assert gathering.is_decided
    assert gathering.why_not_whole() == "worker.0 has gone on before it was let go"


@pytest.mark.parametrize("last", [None, Held(NUMBER), Released(NUMBER, False, 0.1), whole(NUMBER - 1), Here()])
def test_a_task_that_does_not_say_that_it_has_stood_until_now_makes_it_mixed(
    gathering: Gathering, last: Answer | None
) -> None:
    hear(gathering, (FIRST, Held(NUMBER)), (SECOND, Held(NUMBER)), (FIRST, whole()))
    if last is not None:
        hear(gathering, (SECOND, last))
    assert gathering.why_not_whole().startswith("worker.1 ")


def test_who_has_never_stood_has_not_stood_until_now(gathering: Gathering) -> None:
    hear(gathering, (FIRST, Held(NUMBER)), (FIRST, whole()), (SECOND, whole()))
    assert gathering.why_not_whole().startswith("worker.1 ")


def test_what_is_of_another_hold_or_task_changes_nothing(gathering: Gathering) -> None:
    hear(gathering, (FIRST, Held(NUMBER - 1)), (TaskId("worker", 9), Held(NUMBER)))
    assert set(gathering.silent) == {FIRST, SECOND}


def test_the_link_is_as_long_as_the_first_answer_takes(gathering: Gathering) -> None:
    hear(gathering, (FIRST, Within(NUMBER)), at_s=BEGUN_S + 0.004)
    hear(gathering, (FIRST, Held(NUMBER)), at_s=BEGUN_S + 0.4)
    assert gathering.round_trips == {FIRST: pytest.approx(0.004)}


def test_the_limits_are_those_of_one_machine_and_the_link_within_its_own() -> None:
    assert link_s_of(0.002) == 0.002
    assert link_s_of(None) == link_s_of(60.0) == LINK_S_MAX
    assert gather_limit_s(0.1, 0.002) == pytest.approx(0.102)
    assert gather_limit_s(60.0, 60.0) == GATHER_S_MAX + LINK_S_MAX
    assert capture_limit_s(0.002) == pytest.approx(HELD_S_MAX + 0.002)
    assert capture_limit_s(60.0) == HELD_S_MAX + LINK_S_MAX


@pytest.mark.parametrize("frames", [[], [b""], [b"\xc1"], [b"a", b"b"], pack(Here()) * 2, [b"\x93\xa4Hold\x01\x02"]])
def test_frames_that_are_none_are_an_error_of_the_peer(frames: list[bytes]) -> None:
    for read in (read_order, read_answer):
        with pytest.raises(PeerError, match="no frame of a hold"):
            read(frames)


def test_frames_are_read_as_they_were_sent() -> None:
    assert read_order(pack(Hold("chief", 1, 0.5))) == Hold("chief", 1, 0.5)
    assert read_answer(pack(Released(1, True, 0.25))) == Released(1, True, 0.25)
