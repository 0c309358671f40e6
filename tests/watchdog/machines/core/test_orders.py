"""Orders to a member go one at a time and in order, and never to an attempt that is gone."""

from __future__ import annotations

import signal

from procsv.base.identity import TaskId
from procsv.ipc.messaging.member_messages import ClearTask, KillTask, SignalTask, StartTask, TellTask
from procsv.watchdog.machines.core.orders import Order, Orders

WORKER = TaskId("worker", 0)
START, TERM, KILL, CLEAR = (
    StartTask(WORKER, 2),
    SignalTask(WORKER, 2, signal.SIGTERM),
    KillTask(WORKER, 2),
    ClearTask(WORKER, 2),
)


def given(*orders: Order) -> Orders:
    made = Orders()
    for order in orders:
        made.give(order)
    return made


def send(orders: Orders) -> Order | None:
    if (order := orders.due()) is not None:
        orders.sent()
    return order


def test_the_next_order_is_due_once_the_previous_one_is_acknowledged() -> None:
    orders = given(START, TERM)

    assert send(orders) is START
    assert send(orders) is None
    orders.acknowledged(START)
    assert send(orders) is TERM
    orders.acknowledged(TERM)
    assert (send(orders), len(orders)) == (None, 0)


def test_an_order_that_could_not_be_sent_stays_due() -> None:
    orders = given(START)

    assert orders.due() is START
    assert orders.due() is START


def test_an_acknowledgement_of_another_order_is_ignored() -> None:
    orders = given(START, TERM)
    send(orders)

    orders.acknowledged(TERM)
    orders.acknowledged(StartTask(WORKER, 2))  # an equal order sent before it

    assert send(orders) is None
    assert len(orders) == 2


def test_the_end_of_an_attempt_withdraws_its_orders_and_the_rest_follows_at_once() -> None:
    later = StartTask(WORKER, 3)
    orders = given(TERM, KILL, TellTask(WORKER, 2, b""), CLEAR, later)
    send(orders)

    assert orders.attempt_died(2) is TERM, "it is under way, and is not to be sent again"
    assert send(orders) is CLEAR
    orders.acknowledged(TERM)  # it had arrived anyway
    assert send(orders) is None
    orders.acknowledged(CLEAR)
    assert send(orders) is later


def test_the_end_of_an_earlier_attempt_withdraws_nothing_of_a_later_one() -> None:
    orders = given(START, TERM)
    send(orders)

    assert orders.attempt_died(1) is None
    orders.acknowledged(START)
    assert send(orders) is TERM
