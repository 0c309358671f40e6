"""The ledger counts a task that outlives its coordinator as training all the time."""

import pytest

from procsv.report.time_ledger import take_accounts
from tests.report.journals import at, died, launched, of_task, started, totals_of


def test_a_task_that_outlived_its_coordinator_has_trained_all_the_time_in_one_attempt() -> None:
    entries = [
        launched(0, tasks=("chief", "worker.0")),
        *of_task("chief", started(1, 1, 0, 10, "fresh")),
        *of_task("worker.0", started(1, 1, 0, 10, "chief")),
        launched(60, tasks=("chief", "worker.0"), seen_until=1050.0),  # its machine was lost
        *of_task("worker.0", [at(60, "adopted", pid=7, host="n2")]),
        *of_task("chief", started(61, 2, 90, 70, "alive")),
        at(100, "run_completed", "chief", step=120),
    ]
    account, tasks = take_accounts(sorted(entries, key=lambda line: line.time))
    assert account is not None
    worker = tasks["worker.0"]
    assert len(worker.incarnations) == 1
    assert totals_of(worker) == {"starting": 10, "kept": 90}
    assert totals_of(account)["stopped"] == 10, "of the chief's time, which is the run's"
    assert (account.failures, worker.failures, account.lost_steps) == (0, 0, 0)


def test_a_task_that_outlives_several_coordinators_continues_whether_it_served_trained_or_had_not_started() -> None:
    tasks = ("chief", "worker.0", "worker.1", "ps.0")
    entries = [
        launched(0, tasks=tasks),
        *of_task("ps.0", [at(1, "spawned", pid=8)]),
        *of_task("worker.0", started(1, 1, 0, 10, "chief")),
        *of_task("worker.1", [at(5, "spawned", pid=9)]),
        launched(60, tasks=tasks, seen_until=1050.0),  # it is lost before it has named the tasks it adopts
        launched(80, tasks=tasks, seen_until=1070.0),
        *(line for task in tasks[1:] for line in of_task(task, [at(80, "adopted", pid=7, host="n2")])),
        *of_task("worker.0", [died(90, 1, 95)]),
        *of_task("worker.0", started(92, 2, 95, 95, "chief")),
        at(100, "run_completed", "chief", step=120),
    ]
    account, of = take_accounts(sorted(entries, key=lambda line: line.time))
    assert account is not None
    assert totals_of(of["ps.0"]) == {"starting": 1, "kept": 99}
    assert totals_of(of["worker.0"]) == {"starting": 13, "kept": 85, "down": 2}
    assert totals_of(of["worker.1"]) == {"starting": 100}
    assert [one.ended_with_watchdog for one in of["worker.0"].incarnations] == [False, True]
    for one in of.values():
        assert sum(one.totals.values()) == pytest.approx(account.wall_s)


def test_a_task_that_was_not_adopted_did_not_outlive_its_coordinator() -> None:
    tasks = ("chief", "worker.0")
    entries = [
        launched(0, tasks=tasks),
        *of_task("worker.0", started(1, 1, 0, 10, "chief")),
        launched(60, tasks=tasks, seen_until=1050.0),
        *of_task("worker.0", started(61, 2, 41, 70, "chief")),
        at(100, "run_completed", "chief", step=120),
    ]
    _, of = take_accounts(entries)
    assert totals_of(of["worker.0"]) == {"starting": 20, "kept": 70, "stopped": 10}
