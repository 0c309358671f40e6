"""The checkpoint core copes with a directory that it cannot read or write, and adopts what others save there."""

from __future__ import annotations

import math

import msgspec
import pytest

from procsv.base.identity import TRAINER, WATCHDOG
from procsv.ipc.messaging.checkpoint_messages import Durable, Restore, Unwritable, UserSave
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.watchdog_messages import Finish, FlushDone, TrainerExited
from procsv.services.checkpoint.core.actions import (
    Acknowledge,
    Announce,
    Examine,
    ListCheckpoints,
    Persist,
    ScanDirectory,
)
from procsv.services.checkpoint.core.core import CheckpointCore
from procsv.services.checkpoint.core.directory import CALM_S, RESCAN_S
from procsv.services.checkpoint.core.facts import DiskState, SavableState, Scan, Sighting
from tests.support.core_desk import NOTHING, PLAN, Desk, bodies, durable_of, only, slot
from tests.support.naming import Naming


# -- unreadable directory --------------------------------------------------------------------------------------
def unread() -> Desk:
    """Return a desk with a state in memory and unknown disk contents."""
    desk = Desk()
    desk.say(PLAN)
    desk.snapshot(slot(1, 10))
    return desk


def test_a_trainers_end_is_answered_when_the_directory_cannot_be_read_to_save_its_state() -> None:
    desk = unread()
    assert bodies(desk.say(TrainerExited(1, clean=True), task=WATCHDOG), FlushDone) == []
    out = desk.see(desk.core.search_failed("Input/output error", desk.now_s))
    assert bodies(out, FlushDone) == [FlushDone(-1, "Input/output error")]


def test_the_end_of_the_run_is_answered_after_three_failed_reads_of_the_directory() -> None:
    desk = unread()
    desk.say(Finish(), task=WATCHDOG)
    for _ in range(2):
        assert bodies(desk.see(desk.core.search_failed("Input/output error", desk.now_s)), FlushDone) == []
        assert ListCheckpoints(PLAN) in desk.after(1.0)
    out = desk.see(desk.core.search_failed("Input/output error", desk.now_s))
    assert bodies(out, FlushDone) == [FlushDone(-1, "Input/output error")]


@pytest.mark.parametrize(("ending", "tries"), [(TrainerExited(1, clean=True), 1), (Finish(), 3)])
def test_a_state_gone_from_memory_is_reported_lost_when_the_directory_cannot_be_read(
    ending: Message, tries: int
) -> None:
    desk = unread()
    desk.ready()
    desk.say(ending, task=WATCHDOG)
    told = [bodies(desk.see(desk.core.search_failed("Input/output error", desk.now_s)), FlushDone) for _ in range(3)]
    lost = FlushDone(-1, Naming("step 10 "))
    assert told == [[lost] if number == tries else [] for number in (1, 2, 3)]


def test_an_unreadable_directory_is_read_again_once_after_a_second() -> None:
    desk = unread()
    desk.see(desk.core.search_failed("Input/output error", desk.now_s))
    assert desk.core.next_due_s() == 1.0
    assert desk.after(0.99) == []
    assert desk.after(0.01) == [ListCheckpoints(PLAN)]
    assert desk.after(5.0) == []


def test_a_directory_that_was_read_is_not_read_again_because_a_search_failed() -> None:
    desk = Desk().begun()
    desk.see(desk.core.search_failed("Input/output error", desk.now_s))
    assert not [action for action in desk.after(60.0) if isinstance(action, ListCheckpoints)]


# -- unwritable directory --------------------------------------------------------------------------------------
def test_trouble_with_the_directory_is_reported_when_it_starts_and_when_it_ends() -> None:
    desk = Desk().begun()
    told = [
        bodies(desk.core.scanned(Scan((), None, trouble), desk.now_s), Unwritable)
        for trouble in ("it is gone", "it is gone", "", "")
    ]
    assert told == [[Unwritable("it is gone")], [], [Unwritable("")], []]


def test_a_failed_save_is_retried_as_soon_as_the_trouble_is_over() -> None:
    desk = Desk().begun()
    desk.leaves_looks = True
    desk.see(desk.core.scanned(Scan((), None, "it is gone"), desk.now_s))
    desk.snapshot(slot(1, 10), "manual")
    desk.see(desk.core.save_failed("it is gone", desk.now_s))
    assert bodies(desk.core.scan_failed("it is gone", desk.now_s), Unwritable) == []
    assert desk.core.saving.current is None
    assert only(desk.core.scanned(Scan((), None, ""), desk.now_s), Persist).state.sequence == 1


# -- saves by others -------------------------------------------------------------------------------------------
def looking_by_itself() -> Desk:
    """Return a desk that leaves directory scans to the test."""
    desk = Desk().begun()
    desk.leaves_looks = True
    return desk


def test_a_scan_that_began_before_a_save_ended_does_not_hide_that_save() -> None:
    desk = looking_by_itself()
    persist = only(desk.snapshot(slot(1, 10), "manual"), Persist)
    only(desk.after(RESCAN_S), ScanDirectory)
    desk.saved(persist)
    desk.see(desk.core.scanned(Scan((), -1, ""), desk.now_s))
    assert desk.core.states.newest_step == 10


def test_a_scan_that_began_after_a_save_shows_what_is_there() -> None:
    desk = looking_by_itself()
    desk.saved(only(desk.snapshot(slot(1, 10), "manual"), Persist))
    only(desk.after(RESCAN_S), ScanDirectory)
    desk.see(desk.core.scanned(Scan((), -1, ""), desk.now_s))
    assert desk.core.states.newest_step == -1


def test_a_save_since_the_start_of_the_run_is_news_even_if_the_first_scan_shows_it() -> None:
    desk = Desk(leaves_looks=True)
    desk.say(PLAN)
    only(desk.see(desk.core.stocked(DiskState(-1, 0, None, (), 100.0), desk.now_s)), ScanDirectory)
    before, since = sighting(99.0), sighting(100.0)
    desk.see(desk.core.scanned(Scan((before, since), None, ""), desk.now_s))
    desk.after(CALM_S)
    assert desk.see(desk.core.scanned(Scan((before, since), None, ""), desk.now_s)) == [Examine(since, PLAN)]


def test_the_save_of_a_dead_trainer_is_examined_at_once() -> None:
    desk = looking_by_itself()
    only(desk.say(TrainerExited(1, clean=False), task=WATCHDOG), ScanDirectory)
    out = desk.see(desk.core.scanned(Scan((sighting(1.0),), None, ""), desk.now_s))
    assert only(out, Examine).sighting == sighting(1.0)


def test_the_save_of_a_new_trainer_is_left_to_it_for_a_while_although_the_previous_one_is_dead() -> None:
    desk = looking_by_itself()
    only(desk.say(TrainerExited(1, clean=False), task=WATCHDOG), ScanDirectory)
    desk.say(Restore(False), incarnation=2)
    desk.see(desk.core.scanned(Scan((sighting(1.0),), None, ""), desk.now_s))
    assert not [action for action in desk.out if isinstance(action, Examine)]


def sighting(time: float) -> Sighting:
    name = f"other-{time:.0f}"
    return Sighting(f"/l/{name}", ((f"{name}.index", 1, 9, 1),), time, listed=True)


def test_a_directory_that_only_tensorflow_can_reach_is_never_scanned_and_a_report_of_it_is_answered_at_once() -> None:
    desk = Desk(CheckpointCore("r", TRAINER, is_local=False), leaves_looks=True)
    desk.say(msgspec.structs.replace(PLAN, save_path="gs://bucket/model.ckpt"))
    desk.see(desk.core.stocked(NOTHING, desk.now_s))
    desk.after(60.0)
    assert not [action for action in desk.out if isinstance(action, ScanDirectory)]
    assert desk.core.next_due_s() == math.inf
    assert [type(action) for action in desk.say(UserSave("gs://bucket/model.ckpt-10"))] == [Acknowledge]


# -- contents at the start -------------------------------------------------------------------------------------
ON_DISK = durable_of(SavableState(4, 40, 1, "r", None))


@pytest.mark.parametrize(
    ("is_restarted", "durable", "told"), [(True, ON_DISK, [ON_DISK]), (True, None, []), (False, ON_DISK, [])]
)
def test_a_replacement_service_reports_what_is_there_because_the_previous_one_may_not_have(
    is_restarted: bool, durable: Durable | None, told: list[Durable]
) -> None:
    desk = Desk(CheckpointCore("r", TRAINER, is_restarted=is_restarted))
    desk.say(PLAN)
    stock = DiskState(40, 4, durable, ("/l/model.ckpt-40",))
    assert [a.body for a in desk.core.stocked(stock, desk.now_s) if isinstance(a, Announce)] == told
    assert [a.body for a in desk.core.stocked(stock, desk.now_s) if isinstance(a, Announce)] == []
