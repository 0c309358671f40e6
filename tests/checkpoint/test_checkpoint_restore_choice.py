"""The choice of what a new trainer restores, in the close cases."""

from __future__ import annotations

import msgspec
import pytest

from procsv.base.identity import TRAINER, WATCHDOG
from procsv.ipc.messaging.checkpoint_messages import Restore, Restored, RestoreFrom, Staged
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.watchdog_messages import TrainerExited
from procsv.ipc.shm.slot_state import SlotState
from procsv.services.checkpoint.core.actions import Find, Persist, Retire, ScanDirectory, VerifySlot
from procsv.services.checkpoint.core.core import CheckpointCore
from procsv.services.checkpoint.core.facts import DiskState, SavableState, Scan
from tests.support.core_desk import NO_CHECKPOINT, NOTHING, PLAN, Desk, bodies, durable_of, only, slot


# -- staged files ----------------------------------------------------------------------------------------------
def test_staged_files_are_saved_before_a_restore_is_answered_if_there_is_no_slot() -> None:
    desk = Desk().begun()
    desk.say(Staged("/s/staged.2/model.ckpt-20", 2, 20, ""))
    out = desk.say(Restore(False), 2)
    assert only(out, Persist).state.sequence == 2
    assert not [action for action in out if isinstance(action, Find)]


def test_a_slot_newer_than_staged_files_is_restored_without_waiting_for_a_save() -> None:
    desk = Desk().begun()
    desk.say(Staged("/s/staged.2/model.ckpt-20", 2, 20, ""))
    desk.ready(slot(3, 30))
    assert only(desk.say(Restore(False), 2), VerifySlot).state.sequence == 3


def test_a_verified_slot_is_not_read_again_because_staged_files_were_saved_meanwhile() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 20))
    verify = only(desk.say(TrainerExited(1, False), task=WATCHDOG), VerifySlot)
    desk.see(desk.core.slot_verified(verify.state, desk.now_s))
    staged = only(desk.say(Staged("/s/staged.2/model.ckpt-20", 2, 20, "manual")), Persist)
    desk.saved(staged)
    assert [body.source for body in bodies(desk.say(Restore(False), 2), RestoreFrom)] == ["memory"]


# -- steps that start over -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("sequence", "wanted"), [(2, VerifySlot), (0, Find)], ids=["of ours", "of somebody else's"])
def test_a_snapshot_of_an_earlier_step_than_the_newest_checkpoint_counts_if_that_is_ours_and_older(
    sequence: int, wanted: type
) -> None:
    desk = Desk().begun(DiskState(300, 2, None, ("/l/model.ckpt-300",), newest_sequence=sequence))
    desk.ready(slot(3, 50))
    out = desk.say(Restore(False), 2)
    assert [type(action) for action in out if isinstance(action, (VerifySlot, Find))] == [wanted]


# -- suspect states --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("avoid_step", "before"), [(-1, -1), (0, 0), (1, 1)])
def test_a_checkpoint_before_the_suspect_step_is_searched_and_any_step_if_none_is_suspect(
    avoid_step: int, before: int
) -> None:
    desk = Desk().begun(DiskState(0, 1, None, ("/l/model.ckpt-0",)))
    desk.say(TrainerExited(1, False, avoid_step), task=WATCHDOG)
    assert only(desk.say(Restore(False), incarnation=2), Find) == Find(PLAN, before)


# -- waits for an answer ---------------------------------------------------------------------------------------
REMOTE = msgspec.structs.replace(PLAN, save_path="gs://bucket/model.ckpt")


def test_an_answer_waits_for_a_scan_that_begins_after_the_question() -> None:
    desk = Desk().begun()
    desk.leaves_looks = True
    assert desk.say(Restore(False)) == [ScanDirectory(PLAN)]
    assert desk.after(1.0) == []
    assert Find(PLAN) in desk.see(desk.core.scanned(Scan((), -1, ""), desk.now_s))


@pytest.mark.parametrize("said", [(Restore(False), REMOTE), (REMOTE, Restore(False))])
def test_an_answer_waits_for_no_scan_if_the_directory_is_never_scanned(said: tuple[Message, ...]) -> None:
    desk = Desk()
    for body in said:
        desk.say(body)
    assert desk.see(desk.core.stocked(NOTHING, desk.now_s)) == [Find(REMOTE)]


def test_each_question_causes_one_search() -> None:
    desk = Desk().begun()
    assert Find(PLAN) in desk.say(Restore(False))
    assert desk.after(1.0) == []


def test_a_search_outdated_by_a_save_is_discarded_and_repeated() -> None:
    desk = Desk().begun(DiskState(50, 9, None, ()))
    persist = only(desk.snapshot(slot(10, 10), "manual"), Persist)
    only(desk.say(Restore(False), 2), Find)
    desk.saved(persist)
    out = desk.see(desk.core.found(NO_CHECKPOINT, desk.now_s))
    assert bodies(out, RestoreFrom) == []
    assert only(out, Find)
    assert (desk.core.states.kept, desk.core.states.newest_step) == (("/l/model.ckpt-10",), 50)


def test_an_unreadable_directory_gives_no_answer_while_a_slot_is_being_read() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    verify = only(desk.say(Restore(False), 2), VerifySlot)
    assert bodies(desk.see(desk.core.search_failed("Input/output error", desk.now_s)), RestoreFrom) == []
    answers = bodies(desk.see(desk.core.slot_verified(verify.state, desk.now_s)), RestoreFrom)
    assert [answer.source for answer in answers] == ["memory"]


# -- memory that stays -----------------------------------------------------------------------------------------
def test_an_earlier_runs_slot_stays_until_the_first_trainer_of_this_run_has_its_state() -> None:
    left = slot(5, 50, 3, "before")
    on_disk = durable_of(SavableState.of_slot(left))
    desk = Desk(CheckpointCore("r", TRAINER, frozenset({"before"}))).begun(DiskState(50, 5, on_disk, on_disk.all_paths))
    desk.ready(left)
    assert [action for action in desk.after(0.0) if isinstance(action, Retire)] == []
    assert only(desk.say(Restored()), Retire).slot == left


def test_a_dead_trainers_unsaved_state_stays_until_a_later_one_is_on_disk() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.snapshot(slot(2, 20))
    persist = only(desk.say(Restored(), incarnation=2), Persist)
    assert [action for action in desk.out if isinstance(action, Retire)] == []
    retired = [action.slot for action in desk.saved(persist) if isinstance(action, Retire)]
    assert retired == [slot(1, 10), slot(2, 20)]


def test_a_dead_trainers_unfinished_slot_is_removed_with_it() -> None:
    desk = Desk().begun()
    desk.ready(slot(5, 50, state=SlotState.WRITING))
    assert only(desk.say(Restored(), incarnation=2), Retire).slot == slot(5, 50, state=SlotState.WRITING)
