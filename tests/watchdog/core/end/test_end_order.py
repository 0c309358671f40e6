"""Workers end first, then the chief, which saves their training, and last the servers that hold it."""

from procsv.base.grace import HEAD_START_S
from procsv.base.identity import TaskId
from procsv.watchdog.core.end.ending import EndOrder, Request

CHIEF, WORKER, EVALUATOR, PS = map(TaskId.parse, ("chief", "worker.0", "evaluator.0", "ps.0"))
ALL = [CHIEF, WORKER, PS, EVALUATOR]
STOP = Request("SIGTERM")


def test_no_task_is_asked_to_end_before_the_end_of_the_run_is_requested() -> None:
    assert EndOrder(CHIEF).take_due(ALL, 9.0) == []
    assert EndOrder(CHIEF).next_due_s(ALL) is None


def test_each_kind_of_task_is_asked_once_when_the_one_before_it_has_ended() -> None:
    order = EndOrder(CHIEF)
    order.begin_end(STOP, 1.0)
    assert order.take_due(ALL, 1.0) == [WORKER, EVALUATOR]
    assert order.take_due(ALL, 1.1) == []
    assert order.take_due([CHIEF, PS, EVALUATOR], 1.2) == []
    assert order.take_due([CHIEF, PS], 1.3) == [CHIEF]
    assert order.take_due([CHIEF, PS], 9.0) == []
    assert order.take_due([PS], 9.1) == [PS]
    assert order.take_due([PS], 9.2) == []


def test_the_chief_does_not_wait_for_a_worker_that_does_not_end_and_the_servers_do() -> None:
    order = EndOrder(CHIEF)
    order.begin_end(STOP, 1.0)
    assert order.take_due(ALL, 1.0) == [WORKER, EVALUATOR]
    assert order.next_due_s(ALL) == 1.0 + HEAD_START_S
    assert order.take_due(ALL, 1.0 + HEAD_START_S) == [CHIEF]
    assert order.next_due_s(ALL) is None
    assert order.take_due([WORKER, PS], 9.0) == []


def test_a_task_that_the_chief_needs_for_a_step_ends_after_the_chief_and_before_the_servers() -> None:
    order = EndOrder(CHIEF)
    order.begin_end(STOP, 1.0)
    assert order.take_due(ALL, 1.0, [WORKER]) == [EVALUATOR]
    assert order.take_due([CHIEF, WORKER, PS], 1.1, [WORKER]) == [CHIEF]
    assert order.take_due([WORKER, PS], 1.2, [WORKER]) == [WORKER]
    assert order.take_due([PS], 1.3) == [PS]


def test_a_run_of_one_task_has_no_order() -> None:
    order = EndOrder(CHIEF)
    order.begin_end(STOP, 1.0)
    assert order.take_due([CHIEF], 1.0) == [CHIEF]


def test_a_task_to_end_at_once_is_asked_at_once_and_again() -> None:
    order = EndOrder(CHIEF)
    order.begin_end(STOP, 1.0)
    order.take_due(ALL, 1.0)
    order.begin_end(Request("SIGINT", at_once=frozenset(ALL)), 1.5)
    assert sorted(order.take_due(ALL, 1.5)) == sorted(ALL)
    assert order.take_due(ALL, 1.6) == []


def test_a_server_that_keeps_the_state_itself_serves_nobody_else() -> None:
    order = EndOrder(PS)
    order.begin_end(STOP, 1.0)
    assert order.take_due([PS], 1.0) == [PS]
