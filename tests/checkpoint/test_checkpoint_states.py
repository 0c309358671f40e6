"""The core knows which states are in memory, on disk or lost."""

from __future__ import annotations

import msgspec
import pytest

from procsv.base.identity import TRAINER, WATCHDOG
from procsv.ipc.messaging.checkpoint_messages import Durable, Rejected
from procsv.ipc.messaging.watchdog_messages import Finish, FlushDone, TrainerExited
from procsv.ipc.shm.slot_state import SlotInfo, SlotState
from procsv.services.checkpoint.core.core import CheckpointCore
from procsv.services.checkpoint.core.facts import Candidate, DiskState, FoundCheckpoint, SavableState
from procsv.services.checkpoint.core.states import BAD_MAX, States
from tests.support.core_desk import Desk, bodies, durable_of, slot


@pytest.mark.parametrize("state", [state for state in SlotState if state is not SlotState.READY])
def test_a_whole_slot_in_memory_is_known_and_a_newer_unfinished_one_is_not(state: SlotState) -> None:
    states = States("r", TRAINER)
    states.see([slot(1, 10), slot(2, 20, state=state)])
    assert states.newest_noted == SavableState.of_slot(slot(1, 10))


def test_a_state_that_is_announced_again_keeps_its_first_announcement() -> None:
    states = States("r", TRAINER)
    said = SavableState(1, 10, 1, "r", None)
    states.note_in_memory(said)
    states.see([slot(1, 10)])
    assert states.newest_noted is said


def test_a_service_that_has_saved_nothing_has_done_no_work_and_knows_of_no_step() -> None:
    core = CheckpointCore("r", TRAINER)
    assert (core.durable_count, core.states.newest_step) == (0, -1)


def test_the_newest_of_the_unreadable_states_are_remembered() -> None:
    states = States("r", TRAINER)
    states.see([slot(BAD_MAX + 2, 10)])
    for sequence in range(1, BAD_MAX + 3):
        assert states.lose(SavableState.of_slot(slot(sequence, 10)), is_bad=True)
    assert states.in_memory() == []
    assert not states.lose(SavableState.of_slot(slot(3, 10)), is_bad=True), "it is known"
    assert states.lose(SavableState.of_slot(slot(1, 10)), is_bad=True), (
        "it was forgotten, as are those whose memory is long gone"
    )


def test_another_runs_memory_is_not_this_runs() -> None:
    states = States("r", TRAINER)
    states.see([slot(1, 10), slot(2, 20, run="another")])
    assert states.newest_noted == SavableState.of_slot(slot(1, 10))
    assert states.top_sequence == 1
    of_both = States("r", TRAINER, frozenset({"another"}))
    of_both.see([slot(1, 10), slot(2, 20, run="another")])
    assert of_both.newest_noted == SavableState.of_slot(slot(1, 10)), (
        "it is of an earlier run, and was told to nobody in this one"
    )
    assert of_both.top_sequence == 2, "and its numbers are not used again"


def test_a_trainers_end_is_answered_by_a_later_attempt_to_save_and_not_by_an_earlier_failure() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10), want="periodic")
    desk.see(desk.core.save_failed("no room", desk.now_s))
    assert bodies(desk.say(TrainerExited(1, False)), FlushDone) == []
    desk.after(3600.0)
    assert bodies(desk.see(desk.core.save_failed("no room", desk.now_s)), FlushDone) == [FlushDone(-1, "no room")]


def test_the_end_of_the_run_is_answered_if_no_plan_says_how_to_save_the_memory() -> None:
    desk = Desk()
    desk.ready(slot(1, 10))
    ends = bodies(desk.say(Finish(), task=WATCHDOG), FlushDone)
    assert [(end.step, bool(end.error)) for end in ends] == [(-1, True)]


# -- states on disk --------------------------------------------------------------------------------------------
def on_disk(sequence: int, step: int) -> Durable:
    return durable_of(SavableState(sequence, step, 1, "r", None))


def test_checkpoints_present_at_the_start_are_listed_until_a_save_decides_which_are_kept() -> None:
    states = States("r", TRAINER)
    states.stocked(DiskState(10, 1, None, ("/l/model.ckpt-10",)))
    assert states.kept == ("/l/model.ckpt-10",)
    states.saved(on_disk(2, 20))
    states.stocked(DiskState(10, 1, None, ("/l/model.ckpt-10",)))
    assert states.kept == ("/l/model.ckpt-20",)


def test_the_old_places_checkpoints_do_not_count_once_checkpoints_go_elsewhere() -> None:
    states = States("r", TRAINER)
    states.stocked(DiskState(10, 1, None, ("/l/model.ckpt-10",)))
    states.forget_disk()
    assert (states.newest_step, states.checkpoint_sequence, states.durable_step, states.kept) == (-1, 0, -1, ())


def test_a_saved_states_details_stay_when_it_is_found_on_disk_again() -> None:
    states, said = States("r", TRAINER), on_disk(1, 10)
    states.saved(said)
    states.stocked(DiskState(10, 1, msgspec.structs.replace(said, seconds=0.0), said.all_paths))
    assert states.durable is said


@pytest.mark.parametrize("sequence", [0, 1])
def test_a_checkpoint_that_turns_out_bad_is_not_durable_and_its_state_is_saved_again(sequence: int) -> None:
    states, bad = States("r", TRAINER), on_disk(2, 20)
    states.see([slot(1, 10), slot(2, 20)])
    states.saved(bad)
    good = Candidate("/l/model.ckpt-10", 10, sequence, True) if sequence else None
    states.searched(FoundCheckpoint(good, (), (Rejected(bad.path, "truncated"),), ""))
    assert (states.durable, states.durable_sequence) == (None, sequence)
    assert states.unsaved == SavableState.of_slot(slot(2, 20))
    assert (states.newest_step, states.checkpoint_sequence) == ((10, sequence) if good else (-1, 0))


@pytest.mark.parametrize(("is_latest", "newest"), [(True, 5), (False, 10)])
def test_another_writers_checkpoint_is_listed_and_is_the_newest_if_the_directory_says_so(
    is_latest: bool, newest: int
) -> None:
    states = States("r", TRAINER)
    states.saved(on_disk(1, 10))
    states.adopted(on_disk(0, 5), is_latest)
    assert (states.kept, states.newest_step) == (("/l/model.ckpt-5",), newest)


@pytest.mark.parametrize(("is_outdated", "newest"), [(False, 5), (True, 10)])
def test_a_scan_decides_which_is_the_newest_unless_a_later_one_was_saved_meanwhile(
    is_outdated: bool, newest: int
) -> None:
    states = States("r", TRAINER)
    states.saved(on_disk(1, 10))
    states.scanned(5, 0, is_outdated)
    assert states.newest_step == newest


@pytest.mark.parametrize(
    ("saved", "state", "has_newer"),
    [
        (on_disk(5, 300), slot(6, 50), False),
        (on_disk(5, 50), slot(4, 300), True),
        (on_disk(5, 50), slot(5, 51), False),
        (on_disk(5, 300), slot(5, 300), False),
        (on_disk(5, 300), slot(4, 300), False),  # the same state, as good in memory
        (on_disk(0, 300), slot(6, 50), True),
        (on_disk(0, 300), slot(6, 300), False),
    ],
)
def test_our_checkpoints_are_ordered_by_sequence_and_external_ones_by_step(
    saved: Durable, state: SlotInfo, has_newer: bool
) -> None:
    states = States("r", TRAINER)
    states.scanned(saved.step, saved.sequence, is_outdated=False)
    assert states.has_newer_checkpoint(SavableState.of_slot(state)) == has_newer
    if saved.sequence:
        states.saved(saved)
        assert states.has_newer_checkpoint(SavableState.of_slot(state)) == has_newer


def test_the_later_of_two_attempts_has_the_later_state_whatever_the_sequences() -> None:
    states = States("r", TRAINER)
    states.saved(msgspec.structs.replace(on_disk(5, 50), incarnation=2, run="r"))
    assert states.has_newer_checkpoint(SavableState.of_slot(slot(6, 300, incarnation=1)))
    assert not states.has_newer_checkpoint(SavableState.of_slot(slot(4, 20, incarnation=3)))


def test_our_save_is_the_newest_though_its_step_is_earlier_unless_another_writer_has_saved_a_later_one() -> None:
    states = States("r", TRAINER)
    for sequence, step in ((1, 300), (2, 20)):
        states.saved(on_disk(sequence, step))
    assert (states.newest_step, states.checkpoint_sequence, states.durable_step) == (20, 2, 20)
    states.scanned(20, 0, is_outdated=True)
    assert states.checkpoint_sequence == 2
    states.scanned(100, 1, is_outdated=True)
    assert states.newest_step == 20
    states.scanned(100, 0, is_outdated=True)
    assert (states.newest_step, states.checkpoint_sequence) == (100, 0)
    states.saved(on_disk(3, 100))
    assert states.checkpoint_sequence == 0
    states.saved(on_disk(4, 101))
    assert states.checkpoint_sequence == 4


# -- losses ----------------------------------------------------------------------------------------------------
def test_missing_staged_files_are_not_retried_and_a_refilled_slot_is() -> None:
    states, staged = States("r", TRAINER), SavableState(2, 20, 1, "r", None, "/s/staged.2/model.ckpt-20")
    states.see([slot(1, 10)])
    states.take_staged(staged)
    assert not states.lose(staged, is_bad=False)
    assert not states.lose(SavableState.of_slot(slot(1, 10)), is_bad=False)
    assert states.in_memory() == [SavableState.of_slot(slot(1, 10))]


@pytest.mark.parametrize(("restored", "is_lost"), [(1, True), (2, False)])
def test_a_trainers_state_is_missed_until_a_later_trainer_has_continued_without_it(
    restored: int, is_lost: bool
) -> None:
    states = States("r", TRAINER)
    states.note_in_memory(SavableState(1, 10, 1, "r", None))
    states.restored(restored)
    assert (states.lost_state is not None) == is_lost


def test_a_state_of_this_run_is_later_than_the_checkpoint_that_it_began_with_though_its_step_is_lower() -> None:
    states = States("r", TRAINER, frozenset({"another"}))
    states.stocked(DiskState(newest_step=1000, top_sequence=0, durable=None, kept=(), run_began=20.0, newest_time=10.0))
    assert not states.has_newer_checkpoint(SavableState.of_slot(slot(1, 5)))
    assert states.has_newer_checkpoint(SavableState.of_slot(slot(1, 5, run="another")))
    states.scanned(1000, 0, is_outdated=False, time=30.0)
    assert states.has_newer_checkpoint(SavableState.of_slot(slot(1, 5))), "the program saved it meanwhile"
    states.scanned(1000, 0, is_outdated=False, time=10.0)
    states.saved(on_disk(1, 5))
    assert states.newest_step == 5
