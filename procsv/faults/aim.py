"""A fault plan for a run of several tasks.  Pure.

Used by `procsv launch` and `procsv drill`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from procsv.base.errors import UserError
from procsv.base.identity import TRAINER, TaskId
from procsv.faults.plan import Fault, Plan, is_task


def aim_at_tasks(plan: Plan, tasks: Sequence[TaskId]) -> Plan:
    """The plan for a run of these tasks; none: of a trainer.  What is for the trainer is for the one whose state is saved."""
    names = [str(task) for task in tasks] or [str(TRAINER)]
    faults = tuple(_aim(fault, names[0]) for fault in plan.faults)
    for fault in faults:
        if is_task(fault.target) and fault.target not in names:
            raise UserError(f"the fault '{fault}' is for {fault.target}; this run has {', '.join(names)}")
    return msgspec.structs.replace(plan, faults=faults)


def _aim(fault: Fault, chief: str) -> Fault:
    return msgspec.structs.replace(fault, target=chief) if fault.target == str(TRAINER) else fault
