"""A start that a member was ordered waits for a standby that is nearly ready, unless somebody takes it back."""

from __future__ import annotations

from procsv.base.identity import STANDBY, TaskId
from procsv.base.outcome import Exit
from procsv.base.signals import HURRY_SIGNAL
from procsv.ipc.messaging.fd_messages import Waiting
from procsv.watchdog.core import actions, events
from procsv.watchdog.host.standby import ROOM_BYTES_MIN, WAIT_S_MAX, Promote, Standby, StandbySaid, State
from procsv.watchdog.machines.core.orders import OrderedStart

WORKER = TaskId("worker", 0)


def importing() -> Standby:
    """A standby that is being made, as the task has trained before."""
    made = Standby("warm", [])
    made.start_of(WORKER, 1, 0.0)
    made.loaded(0.0)
    made.check_deadlines(0.0, ROOM_BYTES_MIN)
    assert made.state is State.IMPORTING
    return made


def ordered(incarnation: int = 2) -> OrderedStart:
    start = OrderedStart()
    start.order(incarnation, 10.0)
    return start


def test_it_is_due_at_once_without_a_standby() -> None:
    start = ordered()

    assert start.take_due(Standby("off", []), 10.0) == 2
    assert start.take_due(Standby("off", []), 10.0) == 0, "once"


def test_it_is_due_once_the_standby_is_ready_and_comes_from_it() -> None:
    standby, start = importing(), ordered()
    standby.pid = 77
    assert start.take_due(standby, 11.0) == 0
    assert start.is_waiting
    assert standby.out[-1] == actions.Signal(STANDBY, 1, HURRY_SIGNAL)

    standby.said(StandbySaid(1, Waiting(modules=3, seconds=0.5)), 12.0)

    assert start.take_due(standby, 12.0) == 2
    assert isinstance(standby.start_of(WORKER, 2, 12.0), Promote)


def test_it_is_due_at_once_when_the_standby_dies() -> None:
    standby, start = importing(), ordered()

    standby.died(events.Ended(STANDBY, 1, Exit(None, 9)), 12.0)

    assert start.take_due(standby, 12.0) == 2


def test_it_does_not_wait_longer_than_a_cold_start_would_take() -> None:
    standby, start = importing(), ordered()

    assert start.take_due(standby, 10.0 + WAIT_S_MAX - 0.1) == 0
    assert start.take_due(standby, 10.0 + WAIT_S_MAX) == 2


def test_it_is_taken_back_by_its_attempt_alone_and_begins_no_more() -> None:
    standby, start = importing(), ordered(3)

    assert start.withdraw(2) == 0
    assert start.withdraw(3) == 3
    assert start.withdraw() == 0
    assert start.take_due(standby, 1000.0) == 0


def test_a_later_order_takes_the_place_of_an_earlier_one() -> None:
    start = ordered(2)
    start.order(3, 11.0)

    assert start.withdraw() == 3
