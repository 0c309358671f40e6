"""Compute what each fault of a drill cost, from the account of the run. Pure.

Used by runner.py after the training with faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from procsv.base.cluster import PS, role_of
from procsv.base.identity import TRAINER
from procsv.base.journal import entries
from procsv.base.journal.line import Line
from procsv.faults.plan import PlannedFault, describe
from procsv.report.account import Account, Incarnation

ENDS_A_TASK = frozenset({"kill", "segfault", "raise", "exit", "hang", "preempt"})


class Blow(msgspec.Struct, frozen=True):
    """A fault that happened, and its cost."""

    fault: str
    what: str
    step: int
    task: str  # whose process it targeted; for other faults, the task whose state is saved
    incarnation: int
    ended_trainer: bool  # whether it ended that task's process
    lost_steps: int
    down_s: float  # from the death to the end of the first new step
    source: str  # what the next attempt resumed from: memory, checkpoint, fresh, alive, chief


class _Happened(msgspec.Struct, frozen=True):
    """A fault of the plan as journaled; `fault` is None if the plan does not know it."""

    line: Line
    entry: entries.Fault
    fault: PlannedFault | None


def find_blows(
    account: Account, faults: tuple[PlannedFault, ...], tasks: Mapping[str, Account] | None = None
) -> tuple[list[Blow], list[str]]:
    """Return the faults that happened, in order, and the texts of the faults that did not.

    `tasks`: the accounts of several tasks, the run's own first. The cost of a fault for one of them
    is in its own account.
    """
    texts = {str(fault): fault for fault in faults}
    happened = [
        _Happened(line, line.entry, texts.get(line.entry.fault))
        for line in account.remarks
        if isinstance(line.entry, entries.Fault)
    ]
    accounts = dict(tasks or {str(TRAINER): account})
    chief = next(iter(accounts))
    accounts[chief] = account
    blows = dict[int, Blow]()
    for task, own in accounts.items():
        numbers = [number for number, one in enumerate(happened) if _whose(one, accounts, chief) == task]
        for number, blow in zip(numbers, _blows(task, [happened[n] for n in numbers], own), strict=True):
            is_server = role_of(task) == PS
            blows[number] = _with_session(blow, happened[number].line.time, account, chief) if is_server else blow
    seen = {blow.fault for blow in blows.values()} | find_skipped(account).keys()
    return [blows[number] for number in sorted(blows)], [text for text in texts if text not in seen]


def find_skipped(account: Account) -> dict[str, str]:
    """Return the faults that could not be carried out, and why."""
    skipped = (line.entry for line in account.remarks if isinstance(line.entry, entries.FaultSkipped))
    return {entry.fault: entry.why for entry in skipped}


def _whose(one: _Happened, accounts: Mapping[str, Account], chief: str) -> str:
    return one.fault.target if one.fault is not None and one.fault.target in accounts else chief


def _blows(task: str, happened: Sequence[_Happened], account: Account) -> list[Blow]:
    following = dict(zip((one.number for one in account.incarnations), account.incarnations[1:], strict=False))
    return [
        _blow(task, one, death, following.get(death.number) if death is not None else None)
        for one, death in zip(happened, _deaths(task, happened, account), strict=True)
    ]


def _deaths(task: str, happened: Sequence[_Happened], account: Account) -> list[Incarnation | None]:
    """Return, for each fault, the process of `task` that it ended.

    A fault may end a process at once or at any time before the next fault, and a process dies of
    one fault only. A fault that ends its own target has the first claim, because other faults may
    come before the target is gone.
    """
    found: list[Incarnation | None] = [None] * len(happened)
    taken = set[int]()
    for is_for_it in (True, False):
        for number, one in enumerate(happened):
            if found[number] is not None or (is_for_it and not _ends_its_target(task, one.fault)):
                continue
            until_s = account.end_s
            if not is_for_it and number + 1 < len(happened):
                until_s = happened[number + 1].line.time
            for incarnation in account.incarnations:
                is_its_own = not is_for_it or incarnation.number == one.line.incarnation
                if incarnation.number not in taken and is_its_own and _died_of(incarnation, one, until_s):
                    found[number] = incarnation
                    taken.add(incarnation.number)
                    break
    return found


def _ends_its_target(task: str, fault: PlannedFault | None) -> bool:
    return fault is not None and fault.target == task and fault.action in ENDS_A_TASK


def _died_of(incarnation: Incarnation, one: _Happened, until_s: float) -> bool:
    end_s, time_s = incarnation.end_s, one.line.time
    if end_s is not None and time_s <= end_s <= until_s and incarnation.cause not in ("completed", ""):
        return True
    is_of_watchdog = one.fault is not None and one.fault.target == "watchdog"
    return is_of_watchdog and incarnation.start_s <= time_s <= (end_s or until_s)


def _blow(task: str, one: _Happened, died: Incarnation | None, following: Incarnation | None) -> Blow:
    text = one.entry.fault
    return Blow(
        fault=text,
        what=describe(one.fault) if one.fault is not None else text,
        step=one.entry.step,
        task=task,
        incarnation=died.number if died is not None else one.line.incarnation,
        ended_trainer=died is not None,
        lost_steps=died.lost_steps if died is not None else 0,
        down_s=_down_s(died, following),
        source=following.source if following is not None and died is not None else "",
    )


def _down_s(died: Incarnation | None, following: Incarnation | None) -> float:
    if died is None or following is None or following.ready_s is None or died.end_s is None:
        return 0.0
    return following.ready_s - died.end_s


def _with_session(blow: Blow, since_s: float, account: Account, chief: str) -> Blow:
    """Add what the loss of a server cost the chief: a session, or a new start if it cannot make
    one.
    """
    for later in account.remarks:
        entry, is_its_own = later.entry, later.time >= since_s and later.role == chief
        if is_its_own and isinstance(entry, entries.SessionRecovered | entries.Recovered):
            lost_steps = entry.lost_steps or 0
            return msgspec.structs.replace(blow, lost_steps=lost_steps, down_s=entry.seconds, source=entry.source)
    return blow
