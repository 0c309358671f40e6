"""A fault plan must aim at tasks of the run; otherwise the launch is refused before anything starts."""

import pytest

from procsv.base.cluster import list_tasks
from procsv.base.errors import UserError
from procsv.faults.plan import Plan, aim_at_tasks
from procsv.faults.plan_parser import parse_fault

TASKS = list_tasks(1, 1, 0)


def plan(*texts: str) -> Plan:
    return Plan(tuple(map(parse_fault, texts)))


def test_a_fault_for_the_trainer_goes_to_the_task_whose_state_is_saved() -> None:
    assert aim_at_tasks(plan("kill trainer at step 5"), TASKS) == plan("kill chief at step 5")


def test_a_fault_for_a_missing_task_is_refused() -> None:
    with pytest.raises(UserError, match=r"worker.1; .* chief, worker.0, ps.0"):
        aim_at_tasks(plan("kill worker.1 at step 5"), TASKS)
