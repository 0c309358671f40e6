"""The tasks beside the chief restore the same state as the chief, and never memory that the chief is refilling."""

from __future__ import annotations

from procsv.base.identity import TRAINER, WATCHDOG, TaskId
from procsv.ipc.messaging.checkpoint_messages import Restore, Restored, RestoreFrom
from procsv.ipc.messaging.watchdog_messages import TrainerExited
from procsv.services.checkpoint.core.actions import Action, Offer, Persist, Reply, Retire, VerifySlot
from procsv.services.checkpoint.core.core import CheckpointCore
from procsv.services.checkpoint.core.facts import Candidate, FoundCheckpoint
from tests.support.core_desk import NO_CHECKPOINT, Desk, bodies, only, slot

FIRST, SECOND = TaskId("worker", 1), TaskId("worker", 2)


def answers(actions: list[Action]) -> list[tuple[TaskId, str, int]]:
    told = [(action.to.task, action.body) for action in actions if isinstance(action, Reply)]
    return [(task, body.source, body.step) for task, body in told if isinstance(body, RestoreFrom)]


def restored_from_memory(core: CheckpointCore | None = None) -> Desk:
    """Return a desk whose second chief was offered slot 1 of step 10."""
    desk = Desk(core or CheckpointCore("r", TRAINER)).begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerExited(1, False), task=WATCHDOG)
    desk.say(Restore(False), 2)
    assert bodies(desk.see(desk.core.slot_verified(only(desk.out, VerifySlot).state, 0.0)), RestoreFrom)
    return desk


def test_followers_wait_for_the_chief_and_get_the_same_state() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerExited(1, False), task=WATCHDOG)
    verify = only(desk.out, VerifySlot)
    assert answers(desk.say(Restore(False), 2, FIRST)) == []
    assert answers(desk.see(desk.core.slot_verified(verify.state, 0.0))) == []

    assert answers(desk.say(Restore(False), 2)) == [(TRAINER, "memory", 10), (FIRST, "memory", 10)]
    assert answers(desk.say(Restore(False), 2, SECOND)) == [(SECOND, "memory", 10)]


def test_a_followers_question_takes_no_answer_from_the_chief() -> None:
    desk = Desk().begun()
    desk.say(Restore(False))
    desk.say(Restore(False), 1, FIRST)
    assert sorted(task.role for task, *_ in answers(desk.see(desk.core.found(NO_CHECKPOINT, 0.0)))) == [
        "trainer",
        "worker",
    ]


def test_an_answer_meant_for_a_dead_chief_is_not_for_the_followers_of_the_next() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerExited(1, False), task=WATCHDOG)
    desk.say(Restore(False), 2)
    desk.say(TrainerExited(2, False), task=WATCHDOG)
    desk.see(desk.core.slot_verified(only(desk.out, VerifySlot).state, 0.0))
    assert answers(desk.say(Restore(False), 3, FIRST)) == []
    assert answers(desk.say(Restore(False), 3)) == [(TRAINER, "memory", 10), (FIRST, "memory", 10)]


def test_a_question_that_arrives_after_its_askers_death_leaves_the_next_followers_waiting() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerExited(1, False), task=WATCHDOG)
    desk.see(desk.core.slot_verified(only(desk.out, VerifySlot).state, 0.0))
    desk.say(TrainerExited(2, False), task=WATCHDOG)
    desk.say(Restore(False), 2)
    assert answers(desk.say(Restore(False), 3, FIRST)) == []
    assert answers(desk.say(Restore(False), 3)) == [(TRAINER, "memory", 10), (FIRST, "memory", 10)]


def test_a_follower_that_cannot_use_memory_gets_the_same_state_once_it_is_on_disk() -> None:
    desk = restored_from_memory()
    assert answers(desk.say(Restore(True), 2, FIRST)) == []
    save = only(desk.after(2.0), Persist)
    assert answers(desk.saved(save)) == [(FIRST, "checkpoint", 10)]


def test_a_follower_on_another_machine_is_offered_the_memory_and_gets_the_path_on_disk() -> None:
    desk = restored_from_memory()
    assert answers(desk.say(Restore(False, fetches=True), 2, FIRST)) == []
    offered = only(desk.out, Offer)
    assert (offered.to.task, offered.body.source, offered.body.step) == (FIRST, "memory", 10)

    assert answers(desk.say(Restore(True, fetches=True), 2, FIRST)) == [], "it could not be fetched"
    save = only(desk.after(2.0), Persist)
    assert answers(desk.saved(save)) == [(FIRST, "checkpoint", 10)]
    assert only(desk.out, Offer) is offered


def test_the_memory_that_the_chief_restored_stays_until_all_have_it_or_it_has_trained_on() -> None:
    def start() -> Desk:
        desk = restored_from_memory(CheckpointCore("r", TRAINER, followers=2))
        desk.say(Restored(), 2)
        desk.saved(only(desk.out, Persist))
        return desk

    desk = start()
    desk.say(Restore(False), 2, FIRST)
    assert retired(desk) == []
    desk.say(Restore(False), 2, SECOND)
    assert retired(desk) == [1]

    desk = start()
    desk.snapshot(slot(2, 20, 2))
    assert retired(desk) == [1]


def retired(desk: Desk) -> list[int]:
    """Return the snapshots whose memory was released."""
    return sorted({action.slot.sequence for action in desk.out if isinstance(action, Retire)})


def test_once_the_chief_has_trained_on_followers_get_only_what_is_on_disk() -> None:
    desk = restored_from_memory()
    desk.snapshot(slot(2, 20, 2))
    assert answers(desk.say(Restore(False), 3, FIRST)) == []

    saved = only(desk.snapshot(slot(2, 20, 2), "manual"), Persist)
    assert answers(desk.saved(saved)) == [(FIRST, "checkpoint", 20)]


def test_what_a_dead_service_told_the_chief_is_on_disk_for_its_followers() -> None:
    desk = Desk(CheckpointCore("r", TRAINER, is_restarted=True)).begun()
    desk.ready(slot(1, 10))
    assert answers(desk.say(Restore(False), 2, FIRST)) == []
    desk.saved(only(desk.out, Persist))
    found = FoundCheckpoint(Candidate("/l/model.ckpt-10", 10, 1, listed=True), ("/l/model.ckpt-10",), (), "")
    desk.after(0.0)
    assert answers(desk.see(desk.core.found(found, desk.now_s))) == [(FIRST, "checkpoint", 10)]


def test_a_new_service_that_hears_again_of_an_attempts_end_does_not_make_anyone_wait() -> None:
    """The previous service had not settled that end and had already answered the next attempt."""
    desk = Desk(CheckpointCore("r", TRAINER, is_restarted=True)).begun()
    desk.ready(slot(1, 10))
    desk.say(TrainerExited(1, False), task=WATCHDOG)
    assert answers(desk.say(Restore(True), 2, FIRST)) == []
    desk.saved(only(desk.out, Persist))
    found = FoundCheckpoint(Candidate("/l/model.ckpt-10", 10, 1, listed=True), ("/l/model.ckpt-10",), (), "")
    desk.after(0.0)
    assert answers(desk.see(desk.core.found(found, desk.now_s))) == [(FIRST, "checkpoint", 10)]


def test_a_chief_that_asks_a_new_service_meanwhile_gets_its_own_answer() -> None:
    desk = Desk(CheckpointCore("r", TRAINER, is_restarted=True)).begun()
    desk.say(Restore(False), 2, FIRST)
    desk.say(Restore(False), 2)
    assert sorted(task.role for task, *_ in answers(desk.see(desk.core.found(NO_CHECKPOINT, 0.0)))) == [
        "trainer",
        "worker",
    ]


def test_no_task_uses_the_answer_to_a_dead_chief() -> None:
    desk = restored_from_memory()
    desk.say(TrainerExited(2, False), task=WATCHDOG)
    assert answers(desk.say(Restore(False), 3, FIRST)) == []


def test_a_late_report_of_a_chiefs_end_takes_nothing_from_the_next_one() -> None:
    """Watchdog and chief talk to the service on separate connections."""
    desk = Desk(CheckpointCore("r", TRAINER)).begun()
    desk.snapshot(slot(1, 10))
    desk.say(Restore(False), 2)
    desk.see(desk.core.slot_verified(only(desk.out, VerifySlot).state, 0.0))
    desk.say(TrainerExited(1, False), task=WATCHDOG)
    assert answers(desk.say(Restore(False), 2, FIRST)) == [(FIRST, "memory", 10)]
