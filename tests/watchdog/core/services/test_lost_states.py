"""States that never reach the disk are reported, and the run does not end as if they had."""

from __future__ import annotations

from procsv.base.identity import TRAINER
from procsv.base.journal.entries import SnapshotFailed, SnapshotsResumed
from procsv.base.outcome import Exit
from procsv.ipc.messaging.watchdog_messages import Note
from tests.support.naming import Naming
from tests.watchdog.world import World, running

DONE = Exit(0, None)
WHY = Naming("step 840 ", ": no memory")


def untaken(is_last: bool) -> Note:
    return Note(SnapshotFailed(step=840, error="no memory", is_last=is_last))


def test_failing_snapshots_are_reported_and_shown_until_they_succeed() -> None:
    world = running()
    world.receive(TRAINER, untaken(is_last=False))
    world.advance(1.0)
    assert world.core.chief.snapshots.untaken == WHY
    assert world.last("snapshot_failed")["error"] == "no memory"
    assert WHY in world.said
    world.durable(838)
    assert world.core.chief.snapshots.untaken, "it was taken before"
    world.receive(TRAINER, Note(SnapshotsResumed(step=850)))
    world.advance(0.1)
    assert world.core.chief.snapshots.untaken == ""


def test_a_stop_whose_last_state_could_not_be_captured_ends_with_70_and_says_so() -> None:
    world = running()
    world.stop()
    world.receive(TRAINER, untaken(is_last=True))
    world.advance(0.1)
    world.crash(Exit(75, None))
    assert world.exit_code == 70
    assert world.last("gave_up")["why"] == WHY


def test_a_last_state_that_could_not_be_captured_counts_even_if_the_news_comes_after_the_end() -> None:
    """The watchdog may have been blocked itself, perhaps by the same logdir, and sees the end first."""
    world = running()
    world.receive(TRAINER, untaken(is_last=True))
    world.crash(DONE)

    assert world.exit_code == 70
    assert world.last("gave_up")["why"] == WHY


def test_an_unsaved_end_of_a_session_is_over_when_the_next_one_trains() -> None:
    world = running()
    world.receive(TRAINER, untaken(is_last=True))
    world.train(860, restored=800)
    world.crash(DONE)
    assert world.exit_code == 0


def test_a_state_lost_with_its_memory_ends_with_70_though_the_service_does_not_know_it() -> None:
    world = running(step=30)
    world.durable(0)
    world.memory_step = 21
    world.advance(1.0)
    world.stop()
    world.memory_step = -1  # swept while the trainer is killed and a service has just started
    world.crash()
    world.advance(30.0)

    assert world.exit_code == 70
    assert world.last("gave_up")["why"] == Naming("step 21 ")


def crashed_with_its_memory() -> World:
    world = running(step=30)
    world.memory_step = 21
    world.advance(1.0)
    world.memory_step = -1
    world.crash()
    return world


def test_a_state_lost_with_its_memory_is_no_loss_once_it_is_on_disk() -> None:
    world = crashed_with_its_memory()
    world.durable(21)
    world.stop()
    world.advance(30.0)
    assert world.exit_code == 75


def test_a_state_lost_with_its_memory_is_no_loss_once_a_later_trainer_has_continued_without_it() -> None:
    world = crashed_with_its_memory()
    world.advance(2.0)
    world.train(5)
    world.durable(5)
    world.stop()
    world.crash(Exit(75, None))
    world.advance(30.0)
    assert world.exit_code == 75
