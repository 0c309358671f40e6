"""The record of a trainer's snapshots knows the newest, the lost and the failed."""

from __future__ import annotations

from procsv.base.journal.entries import SnapshotFailed
from procsv.base.outcome import NO_STEP
from procsv.watchdog.core.actions import Say
from procsv.watchdog.core.task.progress import SnapshotRecord
from tests.support.naming import Naming

LOST, UNTAKEN = Naming("step 20 "), Naming("step 22 ", ": no memory")


def taken(step: int) -> SnapshotRecord:
    """Return the record of a trainer that has just taken a snapshot of its present step."""
    record = SnapshotRecord()
    record.see_memory(step, trained_step=step)
    return record


def died(record: SnapshotRecord, memory_step: int, has_saved: bool = False) -> SnapshotRecord:
    record.died(memory_step, has_saved)
    return record


def test_a_snapshot_of_a_step_that_the_trainer_has_not_reached_is_anothers() -> None:
    record = taken(20)
    record.see_memory(21, trained_step=20)

    assert (record.memory_step, record.taken_step) == (21, 20)


def test_the_newest_snapshot_is_remembered_after_it_is_gone_until_the_next_attempt() -> None:
    record = taken(20)
    record.see_memory(NO_STEP, trained_step=25)
    assert (record.memory_step, record.taken_step) == (NO_STEP, 20)
    record.start_attempt()
    assert record.taken_step == NO_STEP


def test_a_dead_trainers_missing_snapshot_is_lost_until_that_step_is_on_disk() -> None:
    assert died(taken(20), 19).lost(19) == LOST
    assert died(taken(20), NO_STEP).lost(NO_STEP) == LOST
    assert died(taken(20), NO_STEP).lost(20) == ""
    assert died(taken(20), NO_STEP).lost(21) == ""


def test_nothing_is_lost_if_the_trainer_left_it_or_saved_it() -> None:
    left = died(taken(20), 20)
    assert (left.memory_step, left.lost(NO_STEP)) == (20, "")
    assert died(taken(20), NO_STEP, has_saved=True).lost(NO_STEP) == ""
    assert SnapshotRecord().lost(NO_STEP) == ""


def test_a_trainer_that_has_resumed_continued_without_what_was_lost() -> None:
    record = died(taken(20), NO_STEP)
    record.failed(SnapshotFailed(step=22, error="no memory", is_last=True))
    assert record.lost(NO_STEP) == UNTAKEN
    record.recovered()
    assert record.lost(NO_STEP) == ""


def test_a_state_that_cannot_be_captured_is_reported_and_shown_until_it_can() -> None:
    record = SnapshotRecord()
    said = record.failed(SnapshotFailed(step=22, error="no memory", is_last=False))

    assert said == [Say(UNTAKEN, is_bad=True)]
    assert (record.untaken, record.lost(NO_STEP)) == (UNTAKEN, "")
    assert record.resumed(30) == Say(Naming("step 30"))
    assert record.untaken == ""


def test_a_last_state_that_cannot_be_captured_is_lost_whatever_is_on_disk_and_reported_only_at_the_end() -> None:
    record = SnapshotRecord()

    assert record.failed(SnapshotFailed(step=22, error="no memory", is_last=True)) == []
    assert record.lost(100) == UNTAKEN
    assert record.untaken == ""
