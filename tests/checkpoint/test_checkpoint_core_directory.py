"""The core and the checkpoints' directory: one that cannot be read or written to, and what others save there."""

from __future__ import annotations

import pytest

from procsv.base.identity import WATCHDOG
from procsv.ipc.messaging.messages import Finish, FlushDone, Message, TrainerExited, Unwritable
from procsv.services.checkpoint.core.actions import Persist, TakeStock
from procsv.services.checkpoint.core.facts import Scan
from tests.support.core_desk import PLAN, Desk, bodies, only, slot


# -- it cannot be read -----------------------------------------------------------------------------------------
def unread() -> Desk:
    """A state is in memory, and what is on disk is not known yet."""
    desk = Desk()
    desk.say(PLAN)
    desk.snapshot(slot(1, 10))
    return desk


def test_a_trainers_end_is_answered_when_the_directory_cannot_be_read_to_save_what_it_left() -> None:
    desk = unread()
    assert bodies(desk.say(TrainerExited(1, clean=True), task=WATCHDOG), FlushDone) == []
    out = desk.see(desk.core.search_failed("Input/output error", desk.now_s))
    assert bodies(out, FlushDone) == [FlushDone(-1, "Input/output error")]


def test_the_runs_end_is_answered_when_the_directory_could_not_be_read_three_times() -> None:
    desk = unread()
    desk.say(Finish(), task=WATCHDOG)
    for _ in range(2):
        assert bodies(desk.see(desk.core.search_failed("Input/output error", desk.now_s)), FlushDone) == []
        assert TakeStock(PLAN) in desk.after(1.0)
    out = desk.see(desk.core.search_failed("Input/output error", desk.now_s))
    assert bodies(out, FlushDone) == [FlushDone(-1, "Input/output error")]


@pytest.mark.parametrize("ending", [TrainerExited(1, clean=True), Finish()])
def test_what_is_gone_from_memory_is_said_to_be_lost_when_the_directory_cannot_be_read(ending: Message) -> None:
    desk = unread()
    desk.ready()
    desk.say(ending, task=WATCHDOG)
    out = [body for _ in range(3) for body in bodies(desk.see(desk.core.search_failed("EIO", desk.now_s)), FlushDone)]
    assert out == [FlushDone(-1, "step 10 was in memory alone, and is lost from there")]


def test_a_directory_that_could_not_be_read_is_read_again_after_a_second_and_once() -> None:
    desk = unread()
    desk.see(desk.core.search_failed("Input/output error", desk.now_s))
    assert desk.core.next_due_s() == 1.0
    assert desk.after(0.99) == []
    assert desk.after(0.01) == [TakeStock(PLAN)]
    assert desk.after(5.0) == []


def test_a_directory_that_was_read_is_not_read_again_for_a_search_that_failed() -> None:
    desk = Desk().begun()
    desk.see(desk.core.search_failed("Input/output error", desk.now_s))
    assert not [action for action in desk.after(60.0) if isinstance(action, TakeStock)]


# -- it cannot be written to -----------------------------------------------------------------------------------
def test_trouble_with_the_directory_is_said_when_it_comes_and_when_it_is_over() -> None:
    desk = Desk().begun()
    told = [
        bodies(desk.core.scanned(Scan((), None, trouble), desk.now_s), Unwritable)
        for trouble in ("it is gone", "it is gone", "", "")
    ]
    assert told == [[Unwritable("it is gone")], [], [Unwritable("")], []]


def test_a_save_that_failed_is_tried_again_as_soon_as_the_trouble_is_over() -> None:
    desk = Desk().begun()
    desk.leaves_looks = True
    desk.see(desk.core.scanned(Scan((), None, "it is gone"), desk.now_s))
    desk.snapshot(slot(1, 10), "manual")
    desk.see(desk.core.save_failed("it is gone", desk.now_s))
    assert bodies(desk.core.scan_failed("it is gone", desk.now_s), Unwritable) == []
    assert desk.core.saving.current is None
    assert only(desk.core.scanned(Scan((), None, ""), desk.now_s), Persist).state.sequence == 1
