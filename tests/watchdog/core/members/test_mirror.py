"""Who keeps a copy of the chief's memory, how often it is brought up to date, and which copy is worth having after a loss."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from procsv.base.identity import TaskId
from procsv.watchdog.core.members.membership import Member
from procsv.watchdog.core.members.mirror import (
    AGAIN_S_MAX,
    PAUSE_S_MIN,
    TIME_SHARE,
    Copy,
    Pace,
    choose_keeper,
    newer_copies,
)


def member(number: int, host: str, *, is_lost: bool = False, is_leaving: bool = False) -> Member:
    task = TaskId("worker", number)
    return Member(number, task, host, "", 1, 0.0, is_lost=is_lost, is_leaving=is_leaving)


def keeper(*members: Member) -> int | None:
    found = choose_keeper({one.task: one for one in members}, "n1")
    return found.number if found is not None else None


def test_the_first_member_on_another_machine_that_is_there_keeps_it() -> None:
    assert keeper(member(3, "n3"), member(2, "n2"), member(1, "n1")) == 2
    assert keeper(member(1, "n1"), member(2, "n2", is_lost=True), member(3, "n3")) == 3
    assert keeper(member(2, "n2", is_leaving=True), member(3, "n3")) == 3


def test_nobody_keeps_it_where_all_are_on_the_machine_that_may_be_lost() -> None:
    assert keeper(member(1, "n1"), member(2, "n1")) is None
    assert keeper() is None


def test_it_is_asked_for_once_and_again_only_when_that_has_come_to_an_end() -> None:
    pace = Pace()
    assert not pace.is_due(1e9), "nobody has ordered it"
    pace.begin(5.0)
    assert pace.is_due(5.0)
    pace.asked()
    assert not pace.is_due(1e9)
    pace.fetched(0.0, 6.0)
    assert (pace.is_due(6.0), pace.is_due(6.0 + PAUSE_S_MIN)) == (False, True)
    pace.stop()
    assert not pace.is_due(1e9)


@given(st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=20))
def test_it_is_fetched_in_no_more_than_its_share_of_the_time(fetches: list[float]) -> None:
    pace, now_s = Pace(), 0.0
    pace.begin(now_s)
    for took_s in fetches:
        assert pace.is_due(now_s)
        pace.asked()
        pace.fetched(took_s, now_s + took_s)
        assert pace.due_s is not None
        now_s = pace.due_s
    assert sum(fetches) <= TIME_SHARE * now_s * (1 + 1e-9)


def test_the_tries_after_failures_become_rarer_and_one_success_is_enough() -> None:
    pace, waits = Pace(), []
    for _ in range(8):
        pace.failed(100.0)
        assert pace.due_s is not None
        waits.append(pace.due_s - 100.0)
    assert waits == sorted(waits)
    assert (waits[0], waits[1], waits[-1]) == (10.0, 20.0, AGAIN_S_MAX)
    pace.fetched(0.0, 100.0)
    pace.failed(100.0)
    assert pace.due_s == 110.0


def test_a_copy_is_worth_having_if_it_is_newer_than_what_is_in_memory_here_and_on_disk() -> None:
    found = [(Copy("a", 3, 30), "old"), (Copy("a", 5, 50), "new"), (Copy("a", 4, 40), "middle")]
    assert newer_copies(found, [], -1) == ["new", "middle", "old"]
    assert newer_copies(found, [Copy("a", 4, 40), Copy("a", 2, 20)], -1) == ["new"]
    assert newer_copies(found, [Copy("b", 9, 90)], -1) == ["new", "middle", "old"], "another run's: of no use, perhaps"
    assert newer_copies(found, [], 40) == ["new"], "never one that a checkpoint holds as well"
    assert newer_copies(found, [], 50) == []
