"""The scheduler decides when and why to save, and how long to wait after a failure."""

from __future__ import annotations

import math

import msgspec
import pytest

from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.services.checkpoint.core.facts import SavableState
from procsv.services.checkpoint.core.save_scheduler import Saving
from tests.support.core_desk import PLAN, slot

STATE = SavableState.of_slot(slot(1, 10))


def with_save_secs(seconds: float) -> CheckpointPlan:
    return msgspec.structs.replace(PLAN, save_secs=seconds)


@pytest.mark.parametrize(
    ("plan", "from_s", "due_s"),
    [
        (PLAN, 5.0, 605.0),
        (with_save_secs(1.0), 5.0, 6.0),
        (with_save_secs(0.5), 5.0, 5.5),
        (PLAN, None, math.inf),
        (None, 5.0, math.inf),
        (with_save_secs(0.0), 5.0, math.inf),
    ],
)
def test_periodic_checkpoints_are_due_only_if_the_program_wants_them(
    plan: CheckpointPlan | None, from_s: float | None, due_s: float
) -> None:
    assert Saving(cadence_from_s=from_s).cadence_due_s(plan) == due_s


def test_after_a_successful_save_the_first_back_off_is_a_second_again() -> None:
    saving = Saving()
    for seconds in (1.0, 2.0):
        saving.start_save(STATE, "periodic", PLAN)
        saving.save_failed("no room", 100.0)
        assert saving.retry_s == 100.0 + seconds
    saving.start_save(STATE, "periodic", PLAN)
    saving.ended_well(100.0)
    saving.start_save(STATE, "periodic", PLAN)
    saving.save_failed("no room", 200.0)
    assert saving.retry_s == 201.0


def test_none_is_due_during_a_save_and_the_next_one_comes_save_secs_later() -> None:
    saving = Saving(cadence_from_s=0.0)
    assert saving.next_due_s(PLAN) == 600.0
    saving.start_save(STATE, "manual", PLAN)
    assert saving.next_due_s(PLAN) == math.inf
    saving.ended_well(50.0)
    assert saving.next_due_s(PLAN) == 650.0
