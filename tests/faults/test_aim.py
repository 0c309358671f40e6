"""A plan is aimed at the tasks of its run, and what is for none of them is refused before anything starts."""

import pytest

from procsv.base.cluster import list_tasks
from procsv.base.errors import UserError
from procsv.faults.aim import aim_at_tasks
from procsv.faults.plan import Plan
from procsv.faults.plan_parser import parse_fault

TASKS = list_tasks(1, 1, 0)


def plan(*texts: str) -> Plan:
    return Plan(tuple(map(parse_fault, texts)))


def test_what_is_for_the_trainer_or_its_machine_is_for_the_task_whose_state_is_saved() -> None:
    aimed = aim_at_tasks(plan("kill trainer at step 5", "kill machine of trainer at step 9"), TASKS, on_machines=True)
    assert aimed == plan("kill chief at step 5", "kill machine of chief at step 9")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kill worker.1 at step 5", "is for worker.1; this run has chief, worker.0, ps.0"),
        ("stop machine of worker.1 for 5s at step 5", "is for worker.1; this run has chief, worker.0, ps.0"),
    ],
)
def test_a_fault_for_a_task_that_is_not_there_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        aim_at_tasks(plan(text), TASKS, on_machines=True)


def test_a_fault_for_a_machine_is_refused_in_a_run_of_a_single_launch() -> None:
    with pytest.raises(UserError, match=r"is for a run of one launch a task, .* procsv drill --machines"):
        aim_at_tasks(plan("kill machine of worker.0 at step 5"), TASKS)
