"""The states that the checkpoint core knows of: which of those in memory count."""

from __future__ import annotations

import math

import msgspec
import pytest

from procsv.base.identity import TRAINER, WATCHDOG
from procsv.ipc.messaging.messages import CheckpointPlan, Finish, FlushDone, TrainerExited
from procsv.ipc.shm.slot_state import SlotState
from procsv.services.checkpoint.core.core import Core
from procsv.services.checkpoint.core.facts import State
from procsv.services.checkpoint.core.save_scheduler import Saving
from procsv.services.checkpoint.core.states import States
from tests.support.core_desk import PLAN, Desk, bodies, slot


@pytest.mark.parametrize("state", [state for state in SlotState if state is not SlotState.READY])
def test_what_is_whole_in_memory_is_known_and_a_newer_slot_that_is_not_ready_is_none(state: SlotState) -> None:
    states = States("r", TRAINER)
    states.see([slot(1, 10), slot(2, 20, state=state)])
    assert states.told == State.of_slot(slot(1, 10))


def test_a_state_that_is_told_of_again_stays_as_it_was_told_first() -> None:
    states = States("r", TRAINER)
    said = State(1, 10, 1, "r", None)
    states.tell(said)
    states.see([slot(1, 10)])
    assert states.told is said


def test_a_service_that_has_saved_nothing_has_done_no_work() -> None:
    assert Core("r", TRAINER).durable_count == 0


def test_what_another_run_has_in_memory_is_not_this_runs() -> None:
    states = States("r", TRAINER)
    states.see([slot(1, 10), slot(2, 20, run="another")])
    assert states.told == State.of_slot(slot(1, 10))
    assert states.top_sequence == 1
    of_both = States("r", TRAINER, frozenset({"another"}))
    of_both.see([slot(1, 10), slot(2, 20, run="another")])
    assert of_both.told == State.of_slot(slot(1, 10)), "it is of an earlier run, and was told to nobody in this one"
    assert of_both.top_sequence == 2, "and its numbers are not used again"


def test_a_trainers_end_is_answered_by_a_try_that_comes_after_it_and_not_by_a_failure_of_before() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10), want="periodic")
    desk.see(desk.core.save_failed("no room", desk.now_s))
    assert bodies(desk.say(TrainerExited(1, False)), FlushDone) == []
    desk.after(3600.0)
    assert bodies(desk.see(desk.core.save_failed("no room", desk.now_s)), FlushDone) == [FlushDone(-1, "no room")]


@pytest.mark.parametrize(
    ("plan", "from_s", "due_s"),
    [
        (PLAN, 5.0, 605.0),
        (PLAN, None, math.inf),
        (None, 5.0, math.inf),
        (msgspec.structs.replace(PLAN, save_secs=0.0), 5.0, math.inf),
    ],
)
def test_periodic_checkpoints_are_due_where_the_program_wants_them_and_never_else(
    plan: CheckpointPlan | None, from_s: float | None, due_s: float
) -> None:
    assert Saving(cadence_from_s=from_s).cadence_due_s(plan) == due_s


def test_a_runs_end_is_answered_where_nobody_has_said_how_what_is_in_memory_is_to_be_saved() -> None:
    desk = Desk()
    desk.ready(slot(1, 10))
    ends = bodies(desk.say(Finish(), task=WATCHDOG), FlushDone)
    assert ends == [FlushDone(-1, "nobody has said how its checkpoints are named")]
