"""The chief of a run over machines learns where each task is held, and which ones make no step any more."""

from __future__ import annotations

import pytest

from procsv.base.cluster import CHIEF, list_tasks
from procsv.base.identity import TaskId
from procsv.base.outcome import Exit
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.messages import AskHold, AskHolds, HoldOffer, HoldOffered, HoldTold, Message, StepsEnded
from procsv.watchdog.core.actions import Action, Tell
from procsv.watchdog.core.events import MemberLost, MemberReplaced, Said
from tests.watchdog.played import DONE, KILLED, SAVED, Played

FIRST, SECOND, PS = TaskId("worker", 0), TaskId("worker", 1), TaskId("ps", 0)
OFFER = HoldOffer(2225, "server", "public", "secret")
HOPELESS = Exit(78, None)  # of a program that asks not to be started again


@pytest.fixture
def played() -> Played:
    tasks = list_tasks(2, 1, 1)
    launch = LaunchSettings(workers=2, ps=1, evaluators=1, consistent_snapshots=True, min_workers=0)
    return Played(tasks=tasks, launch=launch, hosts={task: f"on-{task}" for task in tasks[1:]})


def told(actions: list[Action]) -> list[tuple[TaskId, Message]]:
    """What is said of holds."""
    kinds = (AskHold, HoldTold)
    return [(action.task, action.body) for action in actions if isinstance(action, Tell) and type(action.body) in kinds]


def ask(played: Played) -> list[tuple[TaskId, Message]]:
    return told(played.tell(Said(CHIEF, 1, AskHolds())))


def test_where_a_task_is_held_is_told_the_chief(played: Played) -> None:
    assert told(played.tell(Said(FIRST, 1, HoldOffered(OFFER)))) == [(CHIEF, HoldTold(FIRST, 1, OFFER))]


def test_a_chief_that_asks_has_all_tasks_asked_that_train_and_run(played: Played) -> None:
    assert ask(played) == [(FIRST, AskHold()), (SECOND, AskHold())]
    played.end(SECOND, KILLED)  # it is started again
    assert ask(played) == [(FIRST, AskHold())]


def test_what_an_attempt_says_that_has_ended_is_told_nobody(played: Played) -> None:
    played.end(FIRST, KILLED)
    assert told(played.tell(Said(FIRST, 1, HoldOffered(OFFER)))) == []


def test_a_task_that_has_done_its_part_is_not_waited_for(played: Played) -> None:
    assert told(played.tell(Said(FIRST, 1, StepsEnded()))) == []
    ended = (CHIEF, HoldTold(FIRST, 1, None, is_between=True))
    assert told(played.end(FIRST, DONE)) == [ended]
    assert ask(played) == [ended, (SECOND, AskHold())], "one that is new has not heard it"


def test_a_task_that_is_given_up_may_have_died_in_a_step(played: Played) -> None:
    assert told(played.end(FIRST, HOPELESS)) == [(CHIEF, HoldTold(FIRST, 1, None))]


def test_a_task_that_is_started_again_is_waited_for(played: Played) -> None:
    played.tell(Said(FIRST, 1, StepsEnded()))
    assert told(played.end(FIRST, Exit(1, None))) == []


def test_at_a_stop_the_chief_knows_that_the_others_have_ended_before_it_is_told_to_save(played: Played) -> None:
    played.stop()
    out = list[Action]()
    for task in (FIRST, SECOND, TaskId("evaluator", 0)):
        out += played.tell(Said(task, 1, StepsEnded())) + played.end(task, SAVED)
    to_chief = [action.body for action in out if isinstance(action, Tell) and action.task == CHIEF]
    assert to_chief[:2] == [HoldTold(task, 1, None, is_between=True) for task in (FIRST, SECOND)]
    assert [type(body).__name__ for body in to_chief[2:]] == ["StopTraining"]


def test_a_task_whose_machine_is_lost_may_train_on_and_is_never_said_to_have_ended(played: Played) -> None:
    assert told(played.tell(MemberLost(FIRST, "on-worker.0", 10.0, ""))) == []
    assert FIRST not in [getattr(body, "task", task) for task, body in ask(played)]


def test_an_attempt_whose_launch_was_killed_may_train_on_and_is_not_said_to_have_ended(played: Played) -> None:
    played.tell(MemberReplaced(FIRST, "on-worker.0", 10, 11))
    played.stop()  # it is not started again
    assert FIRST not in [getattr(body, "task", task) for task, body in ask(played)]


def test_servers_and_evaluators_are_not_held(played: Played) -> None:
    assert told(played.end(TaskId("evaluator", 0), DONE)) == []
