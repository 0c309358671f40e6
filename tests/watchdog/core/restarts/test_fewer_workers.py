"""A run goes on without workers that are given up, as long as --min-workers are left."""

from __future__ import annotations

from typing import Any

import pytest

from procsv.base.cluster import CHIEF, list_tasks
from procsv.base.identity import TaskId
from procsv.base.outcome import Exit
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.watchdog_messages import TrainerExited, TrainsInStep
from procsv.watchdog.core.actions import Action, Quit, StartAttempt
from procsv.watchdog.core.events import Said, TreeGone
from procsv.watchdog.core.restarts.restart_table import Follows, indispensable, workers_left
from tests.support.naming import Naming
from tests.watchdog.played import DONE, KILLED, SAVED, Played, journaled, said

FIRST, SECOND, THIRD = (TaskId("worker", number) for number in range(3))
PS, EVALUATOR = TaskId("ps", 0), TaskId("evaluator", 0)
HOPELESS = Exit(78, None)  # from a program that asks not to be restarted


def group(least: int | None, ps: int = 1, *, has_chief: bool = True, **settings: Any) -> Played:
    tasks = list_tasks(3, ps, 1, has_chief=has_chief)
    launch = LaunchSettings(workers=3, ps=ps, evaluators=1, min_workers=least, has_chief=has_chief, **settings)
    return Played(tasks=tasks, launch=launch)


def give_up(played: Played, task: TaskId) -> list[Action]:
    return played.end(task, HOPELESS) + played.tell(TreeGone(task, 1))


def end_of_run(played: Played, chief: Exit = DONE) -> list[Action]:
    """Let the chief end that way and the others follow."""
    out = played.end(CHIEF, chief)
    if isinstance(unsettled := played.core.chief.unsettled, TrainerExited):
        out += played.answer(unsettled, "")
    for task, one in played.core.tasks.items():
        if one.pid:
            out += played.end(task, SAVED)
        out += played.tell(TreeGone(task, one.incarnation))
    for second in range(200):
        out += played.tick(played.now_s + second)
    return out


# -- which tasks count -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("least", "given_up", "ends"),
    [
        (None, [FIRST], [FIRST]),
        (3, [FIRST], [FIRST]),
        (2, [FIRST], []),
        (2, [FIRST, THIRD], [FIRST, THIRD]),
        (0, [FIRST, SECOND, THIRD], []),
        (2, [], []),
    ],
)
def test_the_run_ends_with_the_worker_that_leaves_too_few(
    least: int | None, given_up: list[TaskId], ends: list[TaskId]
) -> None:
    follows = dict.fromkeys(given_up, Follows.FEWER)
    assert indispensable(list_tasks(3, 1, 1), follows, least) == ends


def test_chief_servers_and_evaluators_are_not_workers() -> None:
    tasks = list_tasks(3, 2, 2)
    assert workers_left(tasks, {}) == 3
    assert workers_left(tasks, {EVALUATOR: Follows.NOTHING, SECOND: Follows.FEWER}) == 2
    assert indispensable(tasks, {EVALUATOR: Follows.NOTHING, PS: Follows.RUN_ENDS}, 0) == [PS]


# -- a run -----------------------------------------------------------------------------------------------------
def test_one_worker_is_given_up_and_the_others_complete_without_a_failure() -> None:
    played = group(2)
    out = give_up(played, SECOND)
    assert journaled(out, "task_given_up") == [{"why": played.core.tasks[SECOND].gave_up, "workers": 2}]
    assert not journaled(out, "gave_up")
    (line,) = [text for text, _ in said(out) if text.startswith("gave up")]
    assert line.startswith("gave up worker.1: exit code 78")
    assert "2 workers left" in line
    assert not played.core.is_ending
    assert played.core.tasks[SECOND].state_label == "failed"
    assert not any(isinstance(action, StartAttempt) for action in played.tick(1000.0)), "it is not started again"

    out = end_of_run(played)
    assert [quit.exit_code for quit in out if isinstance(quit, Quit)] == [0]
    assert journaled(out, "run_completed")
    why = played.core.tasks[SECOND].gave_up
    assert (Naming(f"worker.1 was given up: {why}"), True) in said(out)


@pytest.mark.parametrize("least", [None, 3])
def test_losing_one_worker_too_many_fails_the_run_with_one_message(least: int | None) -> None:
    played = group(least)
    out = give_up(played, SECOND)
    assert journaled(out, "gave_up")
    assert not journaled(out, "task_given_up")
    assert played.core.is_ending
    out += end_of_run(played, SAVED)
    assert [quit.exit_code for quit in out if isinstance(quit, Quit)] == [70]
    assert len(journaled(out, "gave_up")) == 1


def test_a_second_worker_that_leaves_too_few_ends_the_run() -> None:
    played = group(2)
    give_up(played, SECOND)
    out = give_up(played, THIRD)
    assert len(journaled(out, "gave_up")) == 1
    assert played.core.is_ending
    out += end_of_run(played, SAVED)
    assert [quit.exit_code for quit in out if isinstance(quit, Quit)] == [70]
    assert len(journaled(out, "gave_up")) == 1
    assert not any("was given up" in text for text, _ in said(out)), "both are why the run has ended"


def test_a_worker_that_has_finished_counts_as_one_that_is_left() -> None:
    played = group(2)
    played.end(FIRST, DONE)
    give_up(played, SECOND)
    assert not played.core.is_ending


@pytest.mark.parametrize("task", [CHIEF, PS])
def test_the_chief_and_the_servers_are_always_needed(task: TaskId) -> None:
    played = group(0)
    out = give_up(played, task)
    if isinstance(unsettled := played.core.chief.unsettled, TrainerExited):
        out += played.answer(unsettled, "")
    assert journaled(out, "gave_up")
    assert played.core.is_ending


def test_without_a_chief_the_first_worker_is_always_needed() -> None:
    played = group(0, has_chief=False)
    give_up(played, SECOND)
    assert not played.core.is_ending
    out = give_up(played, FIRST)
    assert journaled(out, "gave_up")
    assert played.core.is_ending


def test_an_evaluator_that_is_given_up_is_reported_as_an_evaluator() -> None:
    played = group(None)
    out = give_up(played, EVALUATOR)
    assert [entry["workers"] for entry in journaled(out, "task_given_up")] == [3]
    assert not journaled(out, "gave_up"), "which is the end of a run"
    assert any(text.startswith("gave up evaluator.0") and "left" not in text for text, _ in said(out))


def test_a_worker_that_is_given_up_while_others_restart_stays_away() -> None:
    played = group(2)
    give_up(played, SECOND)
    out = played.end(FIRST, KILLED) + played.tell(TreeGone(FIRST, 1)) + played.tick(110.0)
    assert [action.task for action in out if isinstance(action, StartAttempt)] == [FIRST]


# -- a gang ----------------------------------------------------------------------------------------------------
def test_a_gang_can_do_without_no_worker_and_the_user_learns_so() -> None:
    played = group(1, ps=0)
    out = played.tell(Said(CHIEF, 1, TrainsInStep()))
    assert [is_bad for text, is_bad in said(out) if "--min-workers has no effect" in text] == [True]
    assert not said(played.tell(Said(FIRST, 1, TrainsInStep()))), "once"
    give_up(played, SECOND)
    assert played.core.is_ending


def test_a_worker_given_up_before_the_gang_formed_ends_the_run_then() -> None:
    played = group(1, ps=0)
    give_up(played, SECOND)
    assert not played.core.is_ending
    out = played.tell(Said(CHIEF, 1, TrainsInStep()))
    assert played.core.is_ending
    out += end_of_run(played, SAVED)
    assert [quit.exit_code for quit in out if isinstance(quit, Quit)] == [70]
    assert journaled(out, "gave_up") == [{"why": played.core.tasks[SECOND].gave_up}]


def test_without_the_option_a_gang_gets_no_message_about_it() -> None:
    played = group(None, ps=0)
    assert not said(played.tell(Said(CHIEF, 1, TrainsInStep())))
