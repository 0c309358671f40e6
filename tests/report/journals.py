"""Journals for tests of the time ledger: launches, starts and ends of attempts, in seconds after
the first launch.
"""

from typing import Any

import msgspec

from procsv.base.journal.line import Line
from procsv.report.account import Account
from procsv.report.time_ledger import take_accounts
from tests.support.journal import an_entry

TASKS = ("chief", "worker.0", "ps.0", "evaluator.0")


def at(time: float, event: str, role: str = "trainer", incarnation: int = 1, **fields: Any) -> Line:
    return Line(1000.0 + time, role, incarnation, an_entry(event, **fields))


def started(time: float, incarnation: int, step: int, ready: float, source: str = "memory") -> list[Line]:
    return [
        at(time, "spawned", incarnation=incarnation, pid=100 + incarnation),
        at(ready, "ready", incarnation=incarnation, step=step + 1),
        at(ready, "recovered", incarnation=incarnation, step=step, source=source, seconds=ready - time, **{"from": ""}),
    ]


def died(
    time: float,
    incarnation: int,
    step: int,
    cause: str = "killed",
    code: int | None = None,
    signal: str | None = "SIGKILL",
) -> Line:
    return at(time, "exited", incarnation=incarnation, step=step, cause=cause, code=code, signal=signal)


def launched(time: float, **fields: Any) -> Line:
    return at(time, "run_started", "watchdog", **fields)


def completed(time: float, incarnation: int, step: int) -> list[Line]:
    exited = at(time, "exited", incarnation=incarnation, step=step, cause="completed", code=0)
    return [exited, at(time + 1, "run_completed", incarnation=incarnation, step=step, goodput=1.0)]


def account_of(*entries: Line | list[Line], **more: Any) -> Account:
    flat = [one for entry in entries for one in (entry if isinstance(entry, list) else [entry])]
    account, _ = take_accounts(flat, **more)
    assert account is not None
    return account


def totals_of(account: Account) -> dict[str, float]:
    return {kind: round(seconds, 6) for kind, seconds in account.totals.items() if seconds}


def of_task(task: str, *entries: Line | list[Line]) -> list[Line]:
    flat = [one for entry in entries for one in (entry if isinstance(entry, list) else [entry])]
    return [msgspec.structs.replace(one, role=task) if one.role == "trainer" else one for one in flat]
