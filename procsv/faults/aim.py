"""A fault plan for a run of several tasks.  Pure.

Used by `procsv launch` and `procsv drill`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from procsv.base.errors import UserError
from procsv.base.identity import TRAINER, TaskId
from procsv.faults.plan import Fault, Plan, hosted_task, is_task, on_machine_of


def aim_at_tasks(plan: Plan, tasks: Sequence[TaskId], *, on_machines: bool = False) -> Plan:
    """The plan for a run of these tasks; none: of a trainer.  What is for the trainer is for the one whose state is saved.

    `on_machines`: each task has a launch of its own, for which there can be faults, too.
    """
    names = [str(task) for task in tasks] or [str(TRAINER)]
    faults = tuple(_aim(fault, names[0]) for fault in plan.faults)
    for fault in faults:
        task = hosted_task(fault.target) or fault.target
        if is_task(task) and task not in names:
            raise UserError(f"the fault '{fault}' is for {task}; this run has {', '.join(names)}")
        if hosted_task(fault.target) and not on_machines:
            raise UserError(
                f"the fault '{fault}' is for a run of one launch a task, as srun starts them, and this is a single launch: "
                "rehearse it with procsv drill --machines"
            )
    return msgspec.structs.replace(plan, faults=faults)


def _aim(fault: Fault, chief: str) -> Fault:
    if fault.target == str(TRAINER):
        return msgspec.structs.replace(fault, target=chief)
    if hosted_task(fault.target) == str(TRAINER):
        return msgspec.structs.replace(fault, target=on_machine_of(chief))
    return fault
