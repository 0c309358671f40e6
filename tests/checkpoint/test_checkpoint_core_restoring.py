"""Scenarios of what a new trainer restores: memory, a checkpoint or an error."""

from __future__ import annotations

from procsv.base.identity import TRAINER, WATCHDOG
from procsv.ipc.messaging.checkpoint_messages import Rejected, Restore, Restored, RestoreFrom
from procsv.ipc.messaging.watchdog_messages import TrainerExited
from procsv.ipc.shm.slot_state import SlotState
from procsv.services.checkpoint.core.actions import (
    Acknowledge,
    Find,
    ListCheckpoints,
    Persist,
    Reply,
    Retire,
    VerifySlot,
)
from procsv.services.checkpoint.core.core import CheckpointCore
from procsv.services.checkpoint.core.facts import Candidate, DiskState, FoundCheckpoint, SavableState
from procsv.services.checkpoint.core.restore_choice import QUIET_S_MAX, TRIES_FOR_RESTORE_MAX
from tests.support.core_desk import NO_CHECKPOINT, NOTHING, PLAN, Desk, bodies, only, slot


def test_a_restore_waits_for_the_plan_and_for_the_contents_of_the_disk() -> None:
    desk = Desk()
    assert desk.say(Restore(False)) == []
    assert [ListCheckpoints(PLAN)] == [a for a in desk.say(PLAN) if not isinstance(a, Acknowledge)]
    assert [Find(PLAN)] == desk.see(desk.core.stocked(NOTHING, 0.0))
    assert [RestoreFrom("fresh", "", -1, 0, (), "")] == bodies(desk.core.found(NO_CHECKPOINT, 0.0), RestoreFrom)


def test_memory_is_preferred_and_does_not_wait_for_a_running_save() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerExited(1, False))
    only(desk.after(QUIET_S_MAX), Persist)
    assert desk.say(Restore(False), 2) == []
    verify = only(desk.out, VerifySlot)
    answer = only(desk.see(desk.core.slot_verified(verify.state, 0.0)), Reply).body
    assert (answer.source, answer.path, answer.step, answer.sequence, answer.error) == (
        "memory",
        "/s/slot.1.1",
        10,
        1,
        "",
    )


def test_a_dead_trainers_state_is_verified_before_anyone_asks() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    verify = only(desk.say(TrainerExited(1, False)), VerifySlot)
    assert bodies(desk.core.slot_verified(verify.state, 0.0), RestoreFrom) == []
    out = desk.say(Restore(False), 2)
    assert [(body.source, body.step) for body in bodies(out, RestoreFrom)] == [("memory", 10)]
    assert not [a for a in out if isinstance(a, VerifySlot)]


def test_a_leftover_state_is_verified_when_the_service_starts() -> None:
    desk = Desk(CheckpointCore("r", TRAINER, is_restarted=True))
    desk.ready(slot(4, 40))
    assert only(desk.after(0.0), VerifySlot).state.sequence == 4
    assert desk.after(1.0) == []


def test_a_state_read_for_a_save_is_not_read_again_for_a_restore() -> None:
    desk = Desk().begun()
    desk.saved(only(desk.snapshot(slot(1, 10), "manual"), Persist))
    assert [body.source for body in bodies(desk.say(Restore(False), 2), RestoreFrom)] == ["memory"]


def test_a_verified_slot_that_was_refilled_is_verified_again() -> None:
    desk = Desk().begun()
    desk.saved(only(desk.snapshot(slot(1, 10), "manual"), Persist))
    desk.snapshot(slot(3, 30))
    out = desk.say(Restore(False), 2)
    assert only(out, VerifySlot).state.sequence == 3
    assert bodies(out, RestoreFrom) == []


def test_a_slot_that_both_the_save_and_the_check_reject_is_rejected_once() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    out = desk.say(TrainerExited(1, False))
    state = only(out, VerifySlot).state
    only(desk.after(QUIET_S_MAX), Persist)
    out = desk.core.verify_lost(state, "w does not match", True, 0.0) + desk.core.save_lost(state, "w", True, 0.0)
    assert len(bodies(out, Rejected)) == 1


def test_another_writers_checkpoint_of_a_later_step_is_preferred_to_memory() -> None:
    desk = Desk().begun(DiskState(50, 9, None, ("/l/model.ckpt-50",)))
    desk.ready(slot(10, 40))
    only(desk.say(Restore(False)), Find)
    found = FoundCheckpoint(Candidate("/l/model.ckpt-50", 50, 0, True), ("/l/model.ckpt-50",), (), "")
    answer = bodies(desk.core.found(found, 0.0), RestoreFrom)[0]
    assert (answer.source, answer.step, answer.sequence) == ("checkpoint", 50, 10)


def test_memory_is_used_when_the_later_checkpoint_turns_out_bad() -> None:
    desk = Desk().begun(DiskState(50, 9, None, ()))
    desk.ready(slot(10, 40))
    desk.say(Restore(False))
    rejected = (Rejected("/l/model.ckpt-50", "truncated"),)
    out = desk.see(desk.core.found(FoundCheckpoint(None, (), rejected, "none is good"), 0.0))
    assert [Rejected("/l/model.ckpt-50", "truncated")] == bodies(out, Rejected)
    assert only(out, VerifySlot).state.sequence == 10


def test_a_bad_slot_is_rejected_and_the_next_one_is_verified() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.snapshot(slot(2, 20))
    verify = only(desk.say(Restore(False), 2), VerifySlot)
    out = desk.see(desk.core.verify_lost(verify.state, "w does not match", True, 0.0))
    assert only(out, VerifySlot).state.sequence == 1
    assert len(bodies(out, Rejected)) == 1


def test_if_no_checkpoint_is_good_the_answer_is_an_error_and_never_a_fresh_start() -> None:
    desk = Desk().begun(DiskState(50, 9, None, ()))
    desk.say(Restore(False))
    answer = bodies(desk.core.found(FoundCheckpoint(None, (), (), "none is good"), 0.0), RestoreFrom)[0]
    assert (answer.source, answer.step, answer.error) == ("checkpoint", -1, "none is good")


def test_an_unreadable_directory_is_an_error_and_never_a_fresh_start() -> None:
    desk = Desk()
    desk.say(PLAN)
    desk.say(Restore(False))
    answer = bodies(desk.core.search_failed("Input/output error", 0.0), RestoreFrom)[0]
    assert (answer.source, answer.step) == ("checkpoint", -1)
    assert "Input/output error" in answer.error
    assert [ListCheckpoints(PLAN)] == desk.after(1.0)


def test_durable_only_saves_first_and_then_answers_with_the_checkpoint() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    persist = only(desk.say(Restore(True), 2), Persist)
    assert not [a for a in desk.out if isinstance(a, (Find, VerifySlot))]
    only(desk.saved(persist), Find)


def test_durable_only_falls_back_when_the_state_cannot_be_saved() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(Restore(True), 2)
    for _ in range(TRIES_FOR_RESTORE_MAX - 1):
        assert not [a for a in desk.core.save_failed("no room", desk.now_s) if isinstance(a, Find)]
        desk.after(60.0)
    assert [Find(PLAN)] == [a for a in desk.core.save_failed("no room", desk.now_s) if isinstance(a, Find)]


def test_a_previous_runs_snapshot_is_restored_and_saved_and_an_unknown_runs_is_removed() -> None:
    desk = Desk(CheckpointCore("r", TRAINER, frozenset({"before"})))
    left, strange = slot(5, 50, 3, "before"), slot(8, 80, 3, "unknown")
    desk.ready(left, strange)
    desk.begun()
    assert [Retire(strange)] == [a for a in desk.after(0.0) if isinstance(a, Retire)]
    desk.say(Restore(False))
    answer = bodies(desk.core.slot_verified(SavableState.of_slot(left), 0.0), RestoreFrom)[0]
    assert (answer.source, answer.sequence) == ("memory", 5)
    assert desk.core.saving.current is not None
    assert desk.core.saving.current.reason == "crash"


def test_old_slots_are_unlinked_once_they_are_durable_and_a_newer_trainer_has_restored() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerExited(1, False))
    persist = only(desk.after(QUIET_S_MAX), Persist)
    desk.say(Restore(False), 2)
    desk.core.slot_verified(only(desk.out, VerifySlot).state, 0.0)
    desk.say(Restored(), 2)
    assert not [a for a in desk.out if isinstance(a, Retire)]
    assert slot(1, 10) == only(desk.saved(persist), Retire).slot


def test_a_slot_offered_to_a_trainer_stays_until_it_has_restored() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerExited(1, False))
    persist = only(desk.after(QUIET_S_MAX), Persist)
    desk.say(Restored(), 2)
    desk.say(Restore(False), 3)
    desk.core.slot_verified(only(desk.out, VerifySlot).state, 0.0)
    assert not [a for a in desk.saved(persist) if isinstance(a, Retire)]
    assert slot(1, 10) == only(desk.say(Restored(), 3), Retire).slot


def test_free_slots_of_dead_trainers_are_removed_and_slots_of_living_ones_stay() -> None:
    desk = Desk().begun()
    dead, alive = slot(0, -1, 1, state=SlotState.FREE), slot(1, -1, 2, state=SlotState.WRITING)
    desk.ready(dead, alive)
    assert dead == only(desk.say(Restored(), 2), Retire).slot


# -- suspect states --------------------------------------------------------------------------------------------
def found(step: int) -> FoundCheckpoint:
    return FoundCheckpoint(Candidate(f"/l/model.ckpt-{step}", step, step, True), (f"/l/model.ckpt-{step}",), (), "")


def test_after_a_suspect_state_the_previous_checkpoint_is_the_answer_although_the_slot_is_good() -> None:
    desk = Desk().begun(DiskState(840, 84, None, ("/l/model.ckpt-800", "/l/model.ckpt-840")))
    desk.ready(slot(84, 840))
    desk.say(TrainerExited(1, False, avoid_step=840), task=WATCHDOG)
    assert only(desk.say(Restore(False), incarnation=2), Find).before == 840
    answer = only(bodies(desk.see(desk.core.found(found(800), 0.0)), RestoreFrom), RestoreFrom)

    assert (answer.source, answer.path, answer.step) == ("checkpoint", "/l/model.ckpt-800", 800)


def test_a_suspect_state_with_no_earlier_one_is_used_after_all() -> None:
    desk = Desk().begun(DiskState(840, 84, None, ("/l/model.ckpt-840",)))
    desk.say(TrainerExited(1, False, avoid_step=840), task=WATCHDOG)
    desk.say(Restore(False), incarnation=2)
    again = desk.see(desk.core.found(FoundCheckpoint(None, ("/l/model.ckpt-840",), (), "none before it"), 0.0))
    assert only(again, Find).before == -1
    answer = only(bodies(desk.see(desk.core.found(found(840), 0.0)), RestoreFrom), RestoreFrom)

    assert (answer.source, answer.step) == ("checkpoint", 840)


def test_suspicion_ends_with_the_trainer_it_was_about() -> None:
    desk = Desk().begun(DiskState(840, 84, None, ("/l/model.ckpt-840",)))
    desk.say(TrainerExited(1, False, avoid_step=840), task=WATCHDOG)
    desk.say(TrainerExited(2, False), task=WATCHDOG)

    assert only(desk.say(Restore(False), incarnation=3), Find).before == -1


# -- earlier runs known only from the directory -------------------------------------------------------------------
def begun_elsewhere(before: str) -> Desk:
    """Return a desk on another machine than the previous run, whose snapshot is here. `before` had
    the directory.
    """
    desk = Desk(CheckpointCore("r", TRAINER, is_local=False))
    desk.ready(slot(40, 400, run="before"))
    desk.say(Restore(False))
    desk.after(0.0)
    assert not [a for a in desk.out if isinstance(a, Retire)], "nobody knows yet"
    desk.say(PLAN)
    desk.see(desk.core.stocked(DiskState(10, 5, None, (), previous_owner=before), 0.0))
    return desk


def test_a_copy_of_the_previous_holders_memory_is_restored() -> None:
    desk = begun_elsewhere("before")
    verify = only(desk.out, VerifySlot)
    (answer,) = bodies(desk.see(desk.core.slot_verified(verify.state, 0.0)), RestoreFrom)
    assert (answer.source, answer.step) == ("memory", 400)
    assert answer.sequence >= 40, "its numbers are not used again"


def test_a_copy_of_any_other_runs_memory_is_removed_once_the_directory_is_known() -> None:
    for before in ("", "another"):
        desk = begun_elsewhere(before)
        assert {a.slot.run for a in desk.out if isinstance(a, Retire)} == {"before"}
        assert not [a for a in desk.out if isinstance(a, VerifySlot)]
