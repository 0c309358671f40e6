"""A process identity has one name, which parses back. In a run with one trainer the names are the bare roles."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsv.base.identity import COMMAND_LINE, NUMBERED_ROLES, PROGRAM_ROLES, STANDBY, TRAINER, WATCHDOG, TaskId
from procsv.base.service_table import SERVICES

ROLES = sorted(PROGRAM_ROLES | {task.role for task in (*SERVICES, WATCHDOG, STANDBY, COMMAND_LINE)})


@given(st.builds(TaskId, st.sampled_from(ROLES), st.integers(0, 10_000)))
def test_a_name_parses_back_to_its_task(task: TaskId) -> None:
    assert TaskId.parse(str(task)) == task


def test_the_only_trainer_and_the_services_are_named_by_their_role() -> None:
    assert [str(task) for task in (TRAINER, *SERVICES, WATCHDOG)] == ["trainer", "checkpoint", "summary", "watchdog"]


def test_a_role_with_several_tasks_is_always_numbered() -> None:
    names = [str(TaskId(role, index)) for role in sorted(NUMBERED_ROLES) for index in (0, 1)]
    assert names == [f"{role}.{index}" for role in ("evaluator", "ps", "spare", "worker") for index in (0, 1)]
    assert str(TaskId("trainer", 1)) == "trainer.1"


@pytest.mark.parametrize(
    "name", ["", "worker", "trainer.0", "worker.01", "worker.-1", "worker.1.2", "../x", "Worker.1"]
)
def test_a_text_that_names_no_task_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        TaskId.parse(name)


def test_only_the_users_tasks_run_the_program() -> None:
    assert [task.runs_program for task in (TRAINER, TaskId("ps", 2), WATCHDOG, STANDBY, COMMAND_LINE, *SERVICES)] == [
        True, True, False, False, False, False, False,
    ]  # fmt: skip
