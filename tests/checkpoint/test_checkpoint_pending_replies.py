"""Requests that wait for a state on disk each get the right answer at the right time."""

from __future__ import annotations

import pytest

from procsv.base.identity import TRAINER, WATCHDOG
from procsv.ipc.messaging.checkpoint_messages import SaveFailed, Snapshot
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.watchdog_messages import Finish, FlushDone, TrainerExited
from procsv.services.checkpoint.core.actions import Reply
from procsv.services.checkpoint.core.pending_replies import PendingReplies
from procsv.services.checkpoint.core.save_scheduler import Saving
from procsv.services.checkpoint.core.states import States
from tests.support.core_desk import slot
from tests.support.naming import Naming


def asker(body: Message, seq: int) -> Received:
    return Received(b"t", WATCHDOG, 1, seq, 0, body, None)


RUN_ENDS, TRAINER_ENDS = asker(Finish(), 1), asker(TrainerExited(1, clean=True), 2)


def both_wait() -> PendingReplies:
    """Return replies with waiters for the end of the run and, asked later, for a trainer's end."""
    waiting = PendingReplies()
    waiting.run_ended(RUN_ENDS, "final")
    waiting.trainer_ended(TRAINER_ENDS, 1, "final")
    return waiting


@pytest.mark.parametrize(("last_error", "why"), [("", "gone"), ("no room", "no room")])
def test_a_request_for_a_state_that_is_nowhere_gets_the_last_error_or_that_it_is_gone(
    last_error: str, why: str
) -> None:
    waiting, wish = PendingReplies(), asker(Snapshot(1, 10, "manual"), 1)
    waiting.want(wish, 1, 10, "manual")
    told = waiting.satisfy(States("r", TRAINER), Saving(last_error=last_error))
    assert told == [Reply(wish, SaveFailed(1, 10, Naming(why), 0.0, 1, "r"))]


def test_a_trainers_end_is_answered_at_the_first_failure_although_the_runs_end_is_not() -> None:
    waiting, states = both_wait(), States("r", TRAINER)
    states.see([slot(1, 10)])
    told = waiting.answer_endings(states, Saving(failures=1, last_error="no room"), after_failure=True)
    assert told == [Reply(TRAINER_ENDS, FlushDone(-1, "no room"))]
    assert not waiting.settled
    told = waiting.answer_endings(states, Saving(failures=3, last_error="no room"), after_failure=True)
    assert told == [Reply(RUN_ENDS, FlushDone(-1, "no room"))]
    assert waiting.settled


def test_a_trainers_end_does_not_wait_for_the_saves_of_others_although_the_runs_end_does() -> None:
    waiting, states = both_wait(), States("r", TRAINER)
    assert waiting.answer_endings(states, Saving(), is_adopting=True) == [Reply(TRAINER_ENDS, FlushDone(-1, ""))]
    assert waiting.answer_endings(states, Saving()) == [Reply(RUN_ENDS, FlushDone(-1, ""))]


@pytest.mark.parametrize(("incarnation", "waits"), [(1, True), (2, False)])
def test_a_trainers_end_waits_for_states_up_to_its_own_attempt_and_for_no_later_one(
    incarnation: int, waits: bool
) -> None:
    waiting, states = PendingReplies(), States("r", TRAINER)
    states.see([slot(1, 10, incarnation)])
    waiting.trainer_ended(TRAINER_ENDS, 1, "crash")
    assert bool(waiting.answer_endings(states, Saving())) != waits
