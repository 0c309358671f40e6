"""The cost of each fault of a drill, as the account of the run tells it.  Pure.

Used by runner.py, when the training with faults is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from procsv.base.cluster import PS, role_of
from procsv.base.identity import TRAINER
from procsv.faults.plan import FAULT_EVENT, SKIPPED_EVENT, Fault, describe, hosted_task
from procsv.report.account import Account, Incarnation, Remark

ENDS_A_TASK = frozenset({"kill", "segfault", "raise", "exit", "hang", "preempt"})


class Blow(msgspec.Struct, frozen=True):
    """A fault that happened, and what it cost."""

    fault: str
    what: str
    step: int
    task: str  # whose process it was for; of other faults the task whose state is saved
    incarnation: int
    ended_trainer: bool  # the process of that task
    lost_steps: int
    down_s: float  # from the death to the end of the first new step
    source: str  # memory, checkpoint, fresh, alive, chief: what the next one went on from


class _Happened(msgspec.Struct, frozen=True):
    """A fault of the plan, as the journal has it; `fault` is None if the plan does not know it."""

    remark: Remark
    fault: Fault | None


def find_blows(
    account: Account, faults: tuple[Fault, ...], tasks: Mapping[str, Account] | None = None
) -> tuple[list[Blow], list[str]]:
    """What happened to the run, in its order, and the faults that did not.

    `tasks`: the accounts of several tasks, that of the run first.  What a fault for one of them cost is in that one's.
    """
    texts = {str(fault): fault for fault in faults}
    happened = [
        _Happened(remark, texts.get(str(remark.fields.get("fault", ""))))
        for remark in account.remarks
        if remark.event == FAULT_EVENT
    ]
    accounts = dict(tasks or {str(TRAINER): account})
    chief = next(iter(accounts))
    accounts[chief] = account
    blows = dict[int, Blow]()
    for task, own in accounts.items():
        numbers = [number for number, one in enumerate(happened) if _whose(one, accounts, chief) == task]
        for number, blow in zip(numbers, _blows(task, [happened[n] for n in numbers], own), strict=True):
            is_server = role_of(task) == PS
            blows[number] = _with_session(blow, happened[number].remark, account, chief) if is_server else blow
    for number, one in enumerate(happened):
        if one.fault is not None and (task := hosted_task(one.fault.target)) in accounts:
            later = (other.remark.time_s for other in happened[number + 1 :] if other.fault is not None)
            blows[number] = _machine_blow(task, one, next(later, account.end_s), account, accounts[task])
    seen = {blow.fault for blow in blows.values()} | find_skipped(account).keys()
    return [blows[number] for number in sorted(blows)], [text for text in texts if text not in seen]


def find_skipped(account: Account) -> dict[str, str]:
    """The faults that cannot be had where the run was, and why."""
    skipped = (remark.fields for remark in account.remarks if remark.event == SKIPPED_EVENT)
    return {str(fields.get("fault", "")): str(fields.get("why", "")) for fields in skipped}


def _machine_blow(task: str, one: _Happened, until_s: float, account: Account, own: Account) -> Blow:
    """Of a fault of the whole machine that hosts `task`: what the run has lost, and how long it was until the task trained again.

    The run ends for a machine only where that is lost to it, or is the one that coordinates; then all begin again.  `until_s`: what
    happens later is not of this fault.
    """
    remark, is_chief = one.remark, own is account
    lost_s = remark.time_s if is_chief else _when_lost(task, remark.time_s, until_s, account)
    died = _newest_at(lost_s, account) if lost_s is not None else None
    if is_chief and died is not None and (died.end_s is None or died.end_s > until_s or died.cause == "completed"):
        died = None
    next_ready_s, source, lost_steps = None, "", 0
    if died is not None and died.end_s is not None:
        following = next((one for one in account.incarnations if one.number > died.number), None)
        again = next((one for one in own.incarnations if one.start_s >= died.end_s), None)
        ready = [one.ready_s for one in (again, following) if one is not None and one.ready_s is not None]
        next_ready_s, source = (ready[0] if ready else None), following.source if following is not None else ""
        went_back = (
            int(remark.fields.get("step", -1)) - following.restored_step if is_chief and following is not None else 0
        )
        lost_steps = max(died.lost_steps, went_back)  # nobody was left to say what the death of its machine cost
    return Blow(
        fault=str(one.fault),
        what=describe(one.fault) if one.fault is not None else "",
        step=int(remark.fields.get("step", -1)),
        task=task,
        incarnation=remark.incarnation,
        ended_trainer=died is not None,
        lost_steps=lost_steps,
        down_s=next_ready_s - remark.time_s if next_ready_s is not None else 0.0,
        source=source,
    )


def _when_lost(task: str, since_s: float, until_s: float, account: Account) -> float | None:
    losses = (r.time_s for r in account.remarks if r.event == "member_lost" and r.role == task)
    return next((time_s for time_s in losses if since_s <= time_s <= until_s), None)


def _newest_at(time_s: float, account: Account) -> Incarnation | None:
    """The newest attempt by then; of a gang it may be dead already, for the loss that nobody knows of yet."""
    return next((one for one in reversed(account.incarnations) if one.start_s <= time_s), None)


def _whose(one: _Happened, accounts: Mapping[str, Account], chief: str) -> str:
    return one.fault.target if one.fault is not None and one.fault.target in accounts else chief


def _blows(task: str, happened: Sequence[_Happened], account: Account) -> list[Blow]:
    following = dict(zip((one.number for one in account.incarnations), account.incarnations[1:], strict=False))
    return [
        _blow(task, one, death, following.get(death.number) if death is not None else None)
        for one, death in zip(happened, _deaths(task, happened, account), strict=True)
    ]


def _deaths(task: str, happened: Sequence[_Happened], account: Account) -> list[Incarnation | None]:
    """Of each fault, the process of `task` that it ended: at once, or before the next fault; none dies of two.

    A fault that ends the process it was for has the first claim: others may come before that one is gone.
    """
    found: list[Incarnation | None] = [None] * len(happened)
    taken = set[int]()
    for is_for_it in (True, False):
        for number, one in enumerate(happened):
            if found[number] is not None or (is_for_it and not _ends_its_target(task, one.fault)):
                continue
            until_s = account.end_s
            if not is_for_it and number + 1 < len(happened):
                until_s = happened[number + 1].remark.time_s
            for incarnation in account.incarnations:
                is_its_own = not is_for_it or incarnation.number == one.remark.incarnation
                if incarnation.number not in taken and is_its_own and _died_of(incarnation, one, until_s):
                    found[number] = incarnation
                    taken.add(incarnation.number)
                    break
    return found


def _ends_its_target(task: str, fault: Fault | None) -> bool:
    return fault is not None and fault.target == task and fault.action in ENDS_A_TASK


def _died_of(incarnation: Incarnation, one: _Happened, until_s: float) -> bool:
    end_s, time_s = incarnation.end_s, one.remark.time_s
    if end_s is not None and time_s <= end_s <= until_s and incarnation.cause not in ("completed", ""):
        return True
    is_of_watchdog = one.fault is not None and one.fault.target == "watchdog"
    return is_of_watchdog and incarnation.start_s <= time_s <= (end_s or until_s)


def _blow(task: str, one: _Happened, died: Incarnation | None, following: Incarnation | None) -> Blow:
    remark, text = one.remark, str(one.remark.fields.get("fault", ""))
    return Blow(
        fault=text,
        what=describe(one.fault) if one.fault is not None else text,
        step=int(remark.fields.get("step", -1)),
        task=task,
        incarnation=died.number if died is not None else remark.incarnation,
        ended_trainer=died is not None,
        lost_steps=died.lost_steps if died is not None else 0,
        down_s=_down_s(died, following),
        source=following.source if following is not None and died is not None else "",
    )


def _down_s(died: Incarnation | None, following: Incarnation | None) -> float:
    if died is None or following is None or following.ready_s is None or died.end_s is None:
        return 0.0
    return following.ready_s - died.end_s


def _with_session(blow: Blow, remark: Remark, account: Account, chief: str) -> Blow:
    """With what the loss of a server cost the chief: a session, or a start if it cannot make one anew."""
    for later in account.remarks:
        if later.time_s >= remark.time_s and later.role == chief and later.event in ("session_recovered", "recovered"):
            fields = later.fields
            return msgspec.structs.replace(
                blow,
                lost_steps=int(fields.get("lost_steps", 0)),
                down_s=float(fields.get("seconds", 0.0)),
                source=str(fields.get("source", "")),
            )
    return blow
