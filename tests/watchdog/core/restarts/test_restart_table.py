"""The restart table has a row for every task that may end and gives what users are promised."""

from __future__ import annotations

from itertools import product

import pytest

from procsv.base.cluster import CHIEF, list_tasks
from procsv.base.identity import TRAINER, TaskId
from procsv.watchdog.core.restarts.restart_table import TABLE, Duty, End, Follows, Policy, belongs_to_gang, duty_of

WORKER, PS, EVALUATOR = TaskId("worker", 1), TaskId("ps", 0), TaskId("evaluator", 0)


def test_each_duty_policy_and_end_has_a_row() -> None:
    assert set(TABLE) == set(product(Duty, Policy, End))


def test_the_first_task_of_a_run_is_its_chief_whatever_its_name() -> None:
    assert (
        duty_of(TRAINER, TRAINER)
        is duty_of(CHIEF, CHIEF)
        is duty_of(TaskId("worker", 0), TaskId("worker", 0))
        is Duty.CHIEF
    )
    assert [duty_of(task, CHIEF) for task in (WORKER, PS, EVALUATOR)] == [Duty.WORKER, Duty.PS, Duty.EVALUATOR]


def test_a_gang_is_the_chief_and_the_workers() -> None:
    members = [task for task in list_tasks(2, 1, 1) if belongs_to_gang(task, CHIEF)]
    assert members == [CHIEF, TaskId("worker", 0), TaskId("worker", 1)]


@pytest.mark.parametrize("end", [End.DIED, End.RETURNED])
def test_in_a_gang_a_training_tasks_end_ends_all_and_any_other_tasks_end_only_itself(end: End) -> None:
    all_again = {duty for duty in Duty if TABLE[duty, Policy.GANG, end] is Follows.ALL_AGAIN}
    assert all_again == {Duty.CHIEF, Duty.WORKER}
    assert all(TABLE[duty, Policy.GANG, end] is Follows.AGAIN for duty in set(Duty) - all_again)


@pytest.mark.parametrize("duty", Duty)
@pytest.mark.parametrize("end", [End.DIED, End.RETURNED])
def test_an_independent_task_restarts_alone(duty: Duty, end: End) -> None:
    assert TABLE[duty, Policy.TASK, end] is Follows.AGAIN


@pytest.mark.parametrize("policy", Policy)
def test_an_evaluator_never_ends_the_run_and_the_chief_does_by_its_own_end(policy: Policy) -> None:
    assert all(TABLE[Duty.EVALUATOR, policy, end] is not Follows.RUN_ENDS for end in End)
    assert TABLE[Duty.CHIEF, policy, End.FINISHED] is Follows.RUN_ENDS
    given_up = {duty for duty in Duty if TABLE[duty, policy, End.GAVE_UP] is Follows.RUN_ENDS}
    assert given_up == set(Duty) - ({Duty.EVALUATOR} if policy is Policy.GANG else {Duty.EVALUATOR, Duty.WORKER})


def test_among_independent_tasks_the_run_can_do_without_a_worker_only() -> None:
    assert [row for row, follows in TABLE.items() if follows is Follows.FEWER] == [
        (Duty.WORKER, Policy.TASK, End.GAVE_UP)
    ]
