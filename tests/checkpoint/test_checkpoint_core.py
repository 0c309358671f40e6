"""Scenarios of the checkpoint core's decisions: events go in, actions come out."""

from __future__ import annotations

import msgspec
import pytest

from procsv.base.identity import TRAINER, WATCHDOG, TaskId
from procsv.base.run.manifest import FileSum
from procsv.ipc.messaging.checkpoint_messages import (
    CheckpointPlan,
    Durable,
    Rejected,
    Restore,
    Restored,
    RestoreFrom,
    SaveFailed,
    Snapshot,
    Staged,
)
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.watchdog_messages import Finish, FlushDone, TrainerExited
from procsv.services.checkpoint.core.actions import (
    Acknowledge,
    Adopt,
    Announce,
    Examine,
    Find,
    ListCheckpoints,
    Persist,
    RemoveStaged,
    Reply,
    Retire,
    ScanDirectory,
    VerifySlot,
)
from procsv.services.checkpoint.core.core import CheckpointCore
from procsv.services.checkpoint.core.directory import ADOPTION_S_MAX
from procsv.services.checkpoint.core.facts import (
    AdoptionResult,
    Candidate,
    DiskState,
    FoundCheckpoint,
    SavableState,
    Scan,
    Sighting,
    Verified,
)
from procsv.services.checkpoint.core.pending_replies import TRIES_AT_END_MAX
from procsv.services.checkpoint.core.restore_choice import QUIET_S_MAX
from tests.support.core_desk import NOTHING, PLAN, Desk, bodies, durable_of, only, slot


# -- cadence ---------------------------------------------------------------------------------------------------
def test_a_checkpoint_is_due_when_save_secs_have_passed_since_the_last_one() -> None:
    desk = Desk().begun()
    assert [Acknowledge] == [type(a) for a in desk.snapshot(slot(1, 10))]
    assert desk.after(599.0) == []
    first = only(desk.after(1.0), Persist)
    assert (first.reason, first.state.step) == ("periodic", 10)
    desk.now_s += 50.0
    desk.saved(first)
    desk.snapshot(slot(2, 20))
    assert desk.after(599.0) == []
    assert only(desk.after(1.0), Persist).state.sequence == 2


def test_each_successful_save_is_counted_as_one() -> None:
    desk = Desk().begun()
    for number in (1, 2, 3):
        desk.saved(only(desk.snapshot(slot(number, 10 * number), "manual"), Persist))
        assert desk.core.durable_count == number


def test_with_save_secs_0_nothing_is_saved_by_time() -> None:
    desk = Desk()
    desk.say(CheckpointPlan("/l/model.ckpt", "checkpoint", 0.0, 5, 1.0, False, False, ""))
    desk.core.stocked(NOTHING, 0.0)
    desk.snapshot(slot(1, 10))
    assert desk.after(1e6) == []


def test_a_save_request_is_served_at_once_and_answered_when_the_state_is_durable() -> None:
    desk = Desk().begun()
    persist = only(desk.snapshot(slot(1, 10), "preempt"), Persist)
    assert persist.reason == "preempt"
    out = desk.saved(persist)
    assert [Durable, Durable] == [type(a.body) for a in out if isinstance(a, (Reply, Announce))]
    assert only(out, Reply).to.seq == 2


def test_one_save_runs_at_a_time_and_then_the_newest_which_answers_all_older_requests_with_the_highest_reason() -> None:
    desk = Desk().begun()
    first = only(desk.snapshot(slot(1, 10), "manual"), Persist)
    assert desk.snapshot(slot(2, 20), "final") == []
    assert desk.snapshot(slot(3, 30), "manual") == []
    second = only(desk.saved(first), Persist)
    assert (second.state.sequence, second.reason) == (3, "final")
    answered = [a.to.seq for a in desk.saved(second) if isinstance(a, Reply)]
    assert answered == [3, 4]


def test_a_request_for_a_durable_state_is_answered_with_it_at_once() -> None:
    desk = Desk().begun()
    desk.saved(only(desk.snapshot(slot(1, 10), "manual"), Persist))
    out = desk.snapshot(slot(1, 10), "final")
    assert only(out, Reply).body.sequence == 1
    assert not [a for a in out if isinstance(a, Persist)]


def test_a_request_whose_snapshot_is_nowhere_fails() -> None:
    desk = Desk().begun()
    assert isinstance(only(desk.say(Snapshot(1, 10, "manual")), Reply).body, SaveFailed)


def test_a_request_is_answered_once_if_its_save_fails_and_is_retried() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10), "manual")
    assert only(desk.see(desk.core.save_failed("no room", desk.now_s)), Reply).to.seq == 2
    assert not [a for a in desk.saved(only(desk.after(1.0), Persist)) if isinstance(a, Reply)]


def test_a_request_for_a_durable_state_does_not_wait_behind_one_for_an_unsaved_state() -> None:
    desk = Desk().begun()
    desk.saved(only(desk.snapshot(slot(1, 10), "manual"), Persist))
    only(desk.snapshot(slot(2, 20), "manual"), Persist)
    assert [body.sequence for body in bodies(desk.say(Snapshot(1, 10, "manual")), Durable)] == [1]


# -- failures --------------------------------------------------------------------------------------------------
def test_a_failed_save_is_announced_and_retried_after_1_2_4_up_to_60_seconds() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10), "manual")
    for delay in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        out = desk.see(desk.core.save_failed("disk full", desk.now_s))
        told = [a.body for a in out if isinstance(a, Announce) and isinstance(a.body, SaveFailed)]
        assert [(failed.error, round(failed.retry_in, 6)) for failed in told] == [("disk full", delay)]
        assert desk.after(delay - 0.01) == []
        again = only(desk.after(0.02), Persist)
        assert again.reason == "manual"
    assert not isinstance(desk.saved(again)[0], Persist)


def test_a_newer_snapshot_is_saved_instead_of_one_that_failed() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10), "manual")
    desk.core.save_failed("disk full", 0.0)
    desk.snapshot(slot(2, 20))
    assert only(desk.after(1.1), Persist).state.sequence == 2


def test_a_new_request_does_not_wait_for_the_back_off() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10), "manual")
    desk.core.save_failed("disk full", 0.0)
    assert only(desk.snapshot(slot(2, 20), "preempt"), Persist).state.sequence == 2


def test_a_slot_that_fails_its_checksums_is_rejected_and_the_older_one_saved() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    persist = only(desk.snapshot(slot(2, 20), "final"), Persist)
    out = desk.see(desk.core.save_lost(persist.state, "x does not match", True, 0.0))
    assert [b.path for b in bodies(out, Rejected)] == ["/s/slot.1.0"]
    assert only(out, Persist).state.sequence == 1
    assert [b.sequence for b in bodies(out, SaveFailed)] == [2]


def test_an_overwritten_slot_is_not_a_failure() -> None:
    desk = Desk().begun()
    persist = only(desk.snapshot(slot(1, 10), "manual"), Persist)
    desk.ready(slot(3, 30))
    again = only(desk.see(desk.core.save_lost(persist.state, "gone", False, 0.0)), Persist)
    assert (again.state.sequence, again.reason) == (3, "manual")


# -- deaths and the end of the run -----------------------------------------------------------------------------
@pytest.mark.parametrize(("clean", "reason"), [(False, "crash"), (True, "final")])
def test_a_dead_trainers_newest_state_is_saved_then_settled(clean: bool, reason: str) -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerExited(1, clean), task=WATCHDOG)
    desk.after(QUIET_S_MAX)
    persist = only(desk.out, Persist)
    assert reason == persist.reason
    assert [FlushDone(10, "")] == bodies(desk.saved(persist), FlushDone)


def test_a_trainer_that_left_nothing_is_settled_at_once() -> None:
    assert [FlushDone(-1, "")] == bodies(Desk().say(TrainerExited(1, False)), FlushDone)


def test_settled_names_what_could_not_be_saved_and_the_save_is_retried() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerExited(1, False))
    only(desk.after(QUIET_S_MAX), Persist)
    assert [FlushDone(-1, "no room")] == bodies(desk.see(desk.core.save_failed("no room", desk.now_s)), FlushDone)
    assert only(desk.after(1.0), Persist).reason == "crash"


def test_a_crashs_state_is_written_once_the_next_trainer_has_restored_it() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    out = desk.say(TrainerExited(1, False))
    assert not [a for a in out if isinstance(a, Persist)], "training's memory is for the restore now"
    desk.see(desk.core.slot_verified(only(out, VerifySlot).state, 0.0))
    desk.say(Restore(False), 2)
    assert not [a for a in desk.out if isinstance(a, Persist)]
    assert only(desk.say(Restored(), 2), Persist).reason == "crash"


def test_a_crashs_state_is_written_after_a_second_even_if_another_task_dies() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerExited(1, False))
    assert desk.core.next_due_s() == QUIET_S_MAX
    assert not [a for a in desk.after(QUIET_S_MAX / 2) if isinstance(a, Persist)]
    desk.say(Restore(False), 2)
    desk.say(TrainerExited(2, False))
    assert only(desk.after(QUIET_S_MAX / 2), Persist).state.sequence == 1
    assert desk.core.next_due_s() > desk.now_s, "the service would look again at once, for ever"


def test_a_quiet_period_that_nobody_needed_still_ends() -> None:
    desk = Desk().begun()
    desk.say(TrainerExited(1, False))
    desk.after(QUIET_S_MAX)
    assert desk.core.next_due_s() > desk.now_s


@pytest.mark.parametrize("body", [Restore(durable_only=True), Finish(), TrainerExited(1, clean=True)])
def test_a_crashs_state_is_written_at_once_if_it_is_awaited_on_disk(body: Message) -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerExited(1, False))
    assert only(desk.say(body, 2), Persist).state.sequence == 1


def test_a_service_that_replaces_a_dead_one_waits_for_no_restore() -> None:
    desk = Desk(CheckpointCore("r", TRAINER, is_restarted=True))
    desk.ready(slot(1, 10))
    desk.say(PLAN)
    assert only(desk.see(desk.core.stocked(NOTHING, 0.0)), Persist).state.sequence == 1


def test_the_end_of_the_run_retries_a_few_times_before_it_gives_up() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    assert only(desk.say(Finish()), Persist).reason == "final"
    for _ in range(TRIES_AT_END_MAX - 1):
        assert bodies(desk.see(desk.core.save_failed("no room", desk.now_s)), FlushDone) == []
        only(desk.after(60.0), Persist)
    assert [FlushDone(-1, "no room")] == bodies(desk.see(desk.core.save_failed("no room", desk.now_s)), FlushDone)
    assert desk.core.waiting.settled


def test_the_end_waits_for_a_running_save() -> None:
    desk = Desk().begun()
    persist = only(desk.snapshot(slot(1, 10), "manual"), Persist)
    assert desk.say(Finish()) == []
    assert [FlushDone(10, "")] == bodies(desk.saved(persist), FlushDone)
    assert desk.core.waiting.settled


def test_a_service_that_replaces_a_dead_one_saves_at_once_what_was_not_saved() -> None:
    desk = Desk(CheckpointCore("r", TRAINER, is_restarted=True))
    desk.ready(slot(4, 40))
    assert [ListCheckpoints(PLAN)] == [a for a in desk.core.plan_seen(PLAN, 0.0) if not isinstance(a, VerifySlot)]
    persist = only(desk.see(desk.core.stocked(NOTHING, 0.0)), Persist)
    assert persist.state.sequence == 4
    desk.saved(persist)
    assert not [a for a in desk.snapshot(slot(5, 50)) if isinstance(a, Persist)], "later ones are saved by time again"


def test_slots_of_another_task_are_neither_saved_nor_removed() -> None:
    desk = Desk().begun()
    foreign = msgspec.structs.replace(slot(9, 90), task=TaskId("ps", 0))
    desk.ready(foreign)
    assert desk.after(10_000.0) == []
    desk.snapshot(slot(1, 10))
    desk.say(Restored(), 2)
    assert desk.core.states.unsaved is not None
    assert desk.core.states.unsaved.sequence == 1
    assert Retire(foreign) not in desk.out


def test_a_durable_state_is_not_saved_again_after_a_restart() -> None:
    desk = Desk(CheckpointCore("r", TRAINER, is_restarted=True))
    desk.ready(slot(4, 40))
    desk.core.plan_seen(PLAN, 0.0)
    there = durable_of(SavableState.of_slot(slot(4, 40)))
    told = desk.see(desk.core.stocked(DiskState(40, 4, there, there.all_paths), 0.0))
    assert told == [Announce(there)]  # the previous service may have died before it could say so


@pytest.mark.parametrize(("run", "incarnation"), [("before", 1), ("r", 1)])
def test_a_requested_save_is_never_acknowledged_with_another_attempts_checkpoint(run: str, incarnation: int) -> None:
    left = durable_of(SavableState(7, 70, incarnation, run, None))
    desk = Desk().begun(DiskState(70, 7, left, left.all_paths))
    if run == "r":
        desk.ready(slot(7, 70, incarnation))  # still in memory
    asked = desk.snapshot(slot(1, 10, incarnation=2), "manual")  # numbered as if nothing were there
    assert not bodies(asked, Durable)
    save = only(asked, Persist)
    assert save.state.sequence == 1
    (told, _) = bodies(desk.saved(save), Durable)
    assert (told.run, told.incarnation, told.sequence) == ("r", 2, 1)
    assert desk.core.states.unsaved is None


def test_a_checkpoint_of_another_plan_hides_nothing_newer_that_was_saved_in_the_meantime() -> None:
    desk = Desk().begun()
    desk.saved(only(desk.snapshot(slot(1, 20), "manual"), Persist))
    for newest_on_disk, known in ((10, 20), (30, 30)):
        desk.core.states.stocked(DiskState(newest_on_disk, 1, None, ()))
        assert desk.core.states.newest_step == known


# -- staged ----------------------------------------------------------------------------------------------------
def test_staged_files_are_saved_like_slots_and_older_ones_are_removed() -> None:
    desk = Desk().begun()
    desk.say(Staged("/s/staged.1/model.ckpt-10", 1, 10, ""))
    out = desk.say(Staged("/s/staged.2/model.ckpt-20", 2, 20, "manual"))
    assert only(out, RemoveStaged).state.staged == "/s/staged.1/model.ckpt-10"
    out = desk.saved(only(out, Persist))
    assert only(out, RemoveStaged).state.staged == "/s/staged.2/model.ckpt-20"


def test_staged_files_newer_than_every_slot_are_saved_before_a_restore_is_answered() -> None:
    desk = Desk().begun()
    desk.ready(slot(1, 10))
    desk.say(Staged("/s/staged.2/model.ckpt-20", 2, 20, ""))
    persist = only(desk.say(Restore(False), 2), Persist)
    assert not [a for a in desk.out if isinstance(a, (Find, VerifySlot))]
    found = FoundCheckpoint(Candidate("/l/model.ckpt-20", 20, 2, True), ("/l/model.ckpt-20",), (), "")
    only(desk.saved(persist), Find)
    assert bodies(desk.core.found(found, 0.0), RestoreFrom)[0].step == 20


# -- the end and the program's last saves ----------------------------------------------------------------------
def looking_by_itself() -> Desk:
    """Return a desk that starts at 0.5 s and leaves directory scans to the test."""
    desk = Desk().begun(DiskState(-1, 0, None, (), 0.5))
    desk.leaves_looks = True
    return desk


def test_the_end_waits_for_the_programs_own_saves_as_long_as_they_are_still_being_adopted() -> None:
    desk = looking_by_itself()
    only(desk.say(Finish()), ScanDirectory)
    external = tuple(
        Sighting(f"/l/model.ckpt-{n}", ((f"model.ckpt-{n}.index", 1, 9, n),), n, True) for n in range(1, 6)
    )
    out = desk.core.scanned(Scan(external, None, ""), desk.now_s)
    for n, sighting in enumerate(external, 1):
        assert only(out, Examine).sighting == sighting
        desk.after(ADOPTION_S_MAX - 0.5)  # a slow disk
        examined = Verified(sighting.path, sighting.signature, n, {"index": FileSum(9, "00")}, n, 0.1, "")
        assert only(desk.core.examined(examined, desk.now_s), Adopt).examined == examined
        assert not desk.core.waiting.settled
        durable = Durable(0, n, 1, sighting.path, "manual", 9, 0.1, ())
        assert only(desk.core.adopted(AdoptionResult(examined, False, durable), desk.now_s), ScanDirectory)
        out = desk.core.scanned(Scan(external[n:], None, ""), desk.now_s)
    assert desk.core.waiting.settled


def test_the_end_does_not_wait_forever_for_the_programs_own_saves() -> None:
    desk = looking_by_itself()
    desk.say(Finish())
    sighting = Sighting("/l/model.ckpt-1", (("model.ckpt-1.index", 1, 9, 1),), 1.0, True)
    only(desk.core.scanned(Scan((sighting,), None, ""), desk.now_s), Examine)
    desk.after(ADOPTION_S_MAX - 0.1)
    assert not desk.core.waiting.settled
    desk.after(0.1)
    assert desk.core.waiting.settled


def test_the_end_waits_until_the_leftovers_of_a_killed_service_on_disk_are_known() -> None:
    desk = Desk()
    desk.see(desk.core.plan_seen(PLAN, desk.now_s))
    assert bodies(desk.say(TrainerExited(1, True), task=WATCHDOG), FlushDone) == [FlushDone(-1, "")]
    assert bodies(desk.say(Finish(), task=WATCHDOG), FlushDone) == []
    assert bodies(desk.see(desk.core.stocked(NOTHING, desk.now_s)), FlushDone) == [FlushDone(-1, "")]


# -- losses ----------------------------------------------------------------------------------------------------
def test_the_end_names_the_state_that_was_lost_with_its_memory_before_it_was_saved() -> None:
    for ending in (TrainerExited(1, True), Finish()):
        desk = Desk().begun()
        desk.snapshot(slot(1, 10))
        desk.snapshot(slot(2, 20))
        desk.ready()
        out = desk.say(ending, task=WATCHDOG)
        assert bodies(out, FlushDone)[0].error.startswith("step 20 ")


def test_a_state_on_disk_or_passed_by_a_later_trainer_is_not_lost() -> None:
    saved = Desk().begun()
    saved.saved(only(saved.snapshot(slot(1, 10), "manual"), Persist))
    saved.ready()
    assert bodies(saved.say(TrainerExited(1, True), task=WATCHDOG), FlushDone)[0].error == ""

    later = Desk().begun()
    later.snapshot(slot(1, 10))
    later.ready()
    assert bodies(later.say(TrainerExited(1, False), task=WATCHDOG), FlushDone)[0].error
    later.say(Restored(), incarnation=2)
    assert bodies(later.say(TrainerExited(2, True), task=WATCHDOG), FlushDone)[0].error == ""


def test_a_state_missing_from_memory_may_be_on_disk_until_the_directory_has_been_scanned() -> None:
    desk = Desk()
    desk.say(PLAN)
    desk.say(Snapshot(1, 10, ""))
    assert not bodies(desk.say(TrainerExited(1, True), task=WATCHDOG), FlushDone)
    on_disk = durable_of(SavableState(1, 10, 1, "r", None))
    (done,) = bodies(desk.see(desk.core.stocked(DiskState(10, 1, on_disk, ()), 0.0)), FlushDone)
    assert (done.step, done.error) == (10, "")
