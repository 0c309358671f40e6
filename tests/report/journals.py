"""Journals for tests of the time ledger: launches, starts and ends of attempts, seconds after the first launch."""

from typing import Any

from procsv.report.account import Account
from procsv.report.time_ledger import take_account

Entry = dict[str, Any]
TASKS = ("chief", "worker.0", "ps.0", "evaluator.0")


def at(time: float, event: str, role: str = "trainer", incarnation: int = 1, **fields: Any) -> Entry:
    return {"time": 1000.0 + time, "event": event, "role": role, "incarnation": incarnation, **fields}


def started(time: float, incarnation: int, step: int, ready: float, source: str = "memory") -> list[Entry]:
    return [
        at(time, "spawned", incarnation=incarnation, pid=100 + incarnation),
        at(ready, "ready", incarnation=incarnation, step=step + 1),
        at(ready, "recovered", incarnation=incarnation, step=step, source=source, seconds=ready - time, **{"from": ""}),
    ]


def died(time: float, incarnation: int, step: int, cause: str = "killed") -> Entry:
    return at(time, "exited", incarnation=incarnation, step=step, cause=cause, evidence="", code=None, signal="SIGKILL")


def launched(time: float, **fields: Any) -> Entry:
    return at(time, "run_started", "watchdog", **fields)


def completed(time: float, incarnation: int, step: int) -> list[Entry]:
    exited = at(time, "exited", incarnation=incarnation, step=step, cause="completed", evidence="", code=0, signal=None)
    return [exited, at(time + 1, "run_completed", incarnation=incarnation, step=step, goodput=1.0)]


def account_of(*entries: Entry | list[Entry], **more: Any) -> Account:
    flat = [one for entry in entries for one in (entry if isinstance(entry, list) else [entry])]
    account = take_account(flat, **more)
    assert account is not None
    return account


def totals_of(account: Account) -> dict[str, float]:
    return {kind: round(seconds, 6) for kind, seconds in account.totals.items() if seconds}


def of_task(task: str, *entries: Entry | list[Entry]) -> list[Entry]:
    flat = [one for entry in entries for one in (entry if isinstance(entry, list) else [entry])]
    return [entry | ({"role": task} if entry["role"] == "trainer" else {}) for entry in flat]
