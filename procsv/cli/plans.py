"""The fault plan of a command line: a file, lines of words, and preemptions.

Used by launch.py and drill.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from procsv.base.errors import UserError
from procsv.base.identity import TRAINER, TaskId
from procsv.faults.plan import Fault, Plan, is_task
from procsv.faults.plan_parser import parse_fault, parse_plan


def make_plan(
    path: str | None, texts: tuple[str, ...], preempt_every_s: float | None, preempt_grace_s: float, seed: int
) -> Plan:
    """All of it in one plan; the seed of the file, if it has one, else `seed`.  UserError says what cannot be read."""
    plan = read_plan(path) if path is not None else Plan()
    faults = [*plan.faults, *(parse_fault(text) for text in texts)]
    if preempt_every_s is not None:
        faults.append(Fault("trainer", "preempt", preempt_grace_s, every_s=preempt_every_s, is_random=True, times=0))
    for fault in faults:
        if faults.count(fault) > 1:
            raise UserError(f"the fault '{fault}' is listed twice; use '2 times' instead")
    return Plan(tuple(faults), plan.seed or seed)


def aim_at_tasks(plan: Plan, tasks: Sequence[TaskId]) -> Plan:
    """The plan for a run of these tasks; none: of a trainer.  What is for the trainer is for the one whose state is saved."""
    names = [str(task) for task in tasks] or [str(TRAINER)]
    faults = [
        msgspec.structs.replace(fault, target=names[0]) if fault.target == str(TRAINER) else fault
        for fault in plan.faults
    ]
    for fault in faults:
        if is_task(fault.target) and fault.target not in names:
            raise UserError(f"the fault '{fault}' is for {fault.target}; this run has {', '.join(names)}")
    return msgspec.structs.replace(plan, faults=tuple(faults))


def read_plan(path: str) -> Plan:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--plan {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--plan {path} is not TOML: {error}") from error
    return parse_plan(text, path)
