"""Each task of a run has its own ledger, and the chief's covers the time of the run."""

import pytest
from msgspec.structs import replace

from procsv.base.journal.line import Line
from procsv.report.account import lost_share
from procsv.report.time_ledger import take_accounts
from tests.report.journals import TASKS, at, completed, died, launched, of_task, started, totals_of


def _group() -> list[Line]:
    """Make a run in which a worker and later a server is killed, which costs each a session. The
    worker ends first.
    """
    lost = [
        at(60, "session_lost", error="Unavailable", step=61),
        at(64, "session_recovered", step=51, at=52, lost_steps=10),
    ]
    entries = [
        *of_task("ps.0", at(1, "spawned", pid=4), died(60, 1, -1), at(61, "spawned", incarnation=2, pid=5)),
        *of_task("chief", started(1, 1, 0, 10, "fresh"), lost, died(100, 1, 101, "completed")),
        *of_task("worker.0", started(1, 1, 0, 10, "chief"), died(20, 1, 11), started(21, 2, 15, 25, "chief")),
        *of_task("worker.0", [replace(line, incarnation=2) for line in lost], died(90, 2, 91, "stopped")),
        *of_task("evaluator.0", at(2, "spawned", pid=6), died(95, 1, -1, "completed")),
        *of_task("ps.0", died(101, 2, -1, "stopped")),
    ]
    ended = at(102, "run_completed", "chief", step=101, goodput=0.9)
    return [launched(0, tasks=TASKS), *sorted(entries, key=lambda line: line.time), ended]


def test_each_task_has_its_own_account_and_the_runs_account_is_the_chiefs() -> None:
    account, tasks = take_accounts(_group())
    assert account is not None
    assert tuple(tasks) == TASKS
    assert totals_of(account) == {"starting": 10, "kept": 77.666667, "redone": 8.333333, "down": 6}
    assert totals_of(tasks["chief"]) | {"down": 4, "stopped": 2} == totals_of(tasks["chief"])
    assert (account.failures, tasks["chief"].failures, tasks["ps.0"].failures) == (2, 0, 1), "of all its tasks"
    worker = tasks["worker.0"]
    assert (worker.failures, [one.source for one in worker.incarnations]) == (1, ["chief", "chief"])
    assert totals_of(worker) | {"starting": 14, "down": 5, "stopped": 12} == totals_of(worker)
    assert totals_of(tasks["ps.0"]) == {"starting": 1, "kept": 99, "down": 1, "stopped": 1}
    assert totals_of(tasks["evaluator.0"]) == {"starting": 2, "kept": 93, "stopped": 7}


def test_the_seconds_of_every_task_add_up_to_the_seconds_of_the_run() -> None:
    account, tasks = take_accounts(_group())
    assert account is not None
    for one in tasks.values():
        assert sum(one.totals.values()) == pytest.approx(account.wall_s)
    lost_s, ran_s = lost_share(tasks)
    trained = [tasks["chief"], tasks["worker.0"]]
    assert ran_s == pytest.approx(sum(one.wall_s - one.totals["stopped"] for one in trained))
    assert lost_s == pytest.approx(ran_s - sum(one.totals["kept"] for one in trained))


def test_a_task_missing_from_a_later_launch_is_stopped_in_it_and_a_run_of_one_task_has_none() -> None:
    later = [
        launched(200, tasks=("chief",)),
        *of_task("chief", started(200, 2, 101, 201)),
        at(250, "stopped", step=150),
    ]
    _, tasks = take_accounts([*_group(), *later])
    assert totals_of(tasks["evaluator.0"]) == {"starting": 2, "kept": 93, "stopped": 155}
    assert take_accounts([launched(0), *started(0, 1, 0, 10), *completed(20, 1, 11)])[1] == {}


def test_a_task_that_ended_because_another_was_lost_has_not_failed() -> None:
    ends = [died(20, 1, 11, "lost-peer"), died(20, 1, 11)]
    entries = [
        of_task(task, started(1, 1, 0, 10, "fresh"), end) for task, end in zip(("chief", "worker.0"), ends, strict=True)
    ]
    again = [of_task(task, started(21, 2, 11, 25)) for task in ("chief", "worker.0")]
    flat = sorted((entry for one in (*entries, *again) for entry in one), key=lambda line: line.time)
    account, tasks = take_accounts([launched(0, tasks=("chief", "worker.0")), *flat, at(40, "stopped", step=30)])
    assert account is not None
    assert (account.failures, tasks["chief"].failures, tasks["worker.0"].failures) == (1, 0, 1)
