"""The choice of who keeps a copy of the chief's memory, and which copy to use after a loss."""

from __future__ import annotations

from procsv.base.identity import TaskId
from procsv.watchdog.machines.core.membership import Member
from procsv.watchdog.machines.core.memory_copy import Copy, choose_keeper, newer_copies


def member(number: int, host: str, *, is_lost: bool = False, is_leaving: bool = False) -> Member:
    task = TaskId("worker", number)
    return Member(number, task, host, "", 1, 0.0, is_lost=is_lost, is_leaving=is_leaving)


def keeper(*members: Member) -> int | None:
    found = choose_keeper({one.task: one for one in members}, "n1")
    return found.number if found is not None else None


def test_the_first_member_present_on_another_machine_keeps_it() -> None:
    assert keeper(member(3, "n3"), member(2, "n2"), member(1, "n1")) == 2
    assert keeper(member(1, "n1"), member(2, "n2", is_lost=True), member(3, "n3")) == 3
    assert keeper(member(2, "n2", is_leaving=True), member(3, "n3")) == 3


def test_nobody_keeps_it_if_all_are_on_the_machine_that_may_be_lost() -> None:
    assert keeper(member(1, "n1"), member(2, "n1")) is None
    assert keeper() is None


def test_a_copy_is_worth_using_if_it_is_newer_than_local_memory_and_disk() -> None:
    found = [(Copy("a", 3, 30), "old"), (Copy("a", 5, 50), "new"), (Copy("a", 4, 40), "middle")]
    assert newer_copies(found, [], -1) == ["new", "middle", "old"]
    assert newer_copies(found, [Copy("a", 4, 40), Copy("a", 2, 20)], -1) == ["new"]
    assert newer_copies(found, [Copy("b", 9, 90)], -1) == ["new", "middle", "old"], "another run's: of no use, perhaps"
    assert newer_copies(found, [], 40) == ["new"], "never one that a checkpoint holds as well"
    assert newer_copies(found, [], 50) == []


def test_a_copy_of_the_previous_run_is_preferred_to_one_of_a_run_that_it_may_not_have_continued() -> None:
    found = [(Copy("first", 9, 90), "first"), (Copy("last", 7, 70), "last"), (Copy("last", 8, 80), "last, newer")]
    assert newer_copies(found, [], -1, "last") == ["last, newer", "last", "first"]
    assert newer_copies(found, [], -1) == ["first", "last, newer", "last"]
