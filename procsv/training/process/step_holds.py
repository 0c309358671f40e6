"""Part of a task in the holds of `--consistent-snapshots`: the chief holds the steps of the others, wherever they are.

Used by the bootstrap.  On one machine that goes by files and locks (runtime/step_gate.py), over several by a channel of its own
(training/holds).
"""

from __future__ import annotations

import sys
from functools import partial

from procsv.base.cluster import STEPLESS
from procsv.base.errors import UserError
from procsv.base.identity import TaskId
from procsv.ipc.messaging.messages import AskHold, AskHolds, HoldOffered, HoldTold, StepsEnded
from procsv.ipc.messaging.start import Start
from procsv.training.holds.far_holder import FarHolder
from procsv.training.holds.held_task import HeldTask
from procsv.training.runtime.bounded_call import were_left
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.step_gate import StepGate


def join_holds(runtime: Runtime, start: Start) -> None:
    """Before the program begins, and before the link talks: no step of it is to be missed, nor what is told of others."""
    others = [task for task in start.settings.tasks if task.role not in STEPLESS and task != start.task]
    if start.is_spread:
        _hold_others(runtime, start, others) if start.is_chief else _be_held(runtime)
        return
    gate = StepGate(start.paths, start.task, others, runtime.clock)
    if start.is_chief:
        runtime.holder = gate
    else:
        runtime.passage = gate


def leave_holds(runtime: Runtime) -> None:
    """The program has ended by itself, and with it its steps, unless one was left to itself."""
    if isinstance(runtime.passage, HeldTask) and runtime.passage.is_between and not were_left():
        runtime.tell_watchdog(StepsEnded())


def _hold_others(runtime: Runtime, start: Start, others: list[TaskId]) -> None:
    hosts = {task: start.cluster[task.role][task.index].rpartition(":")[0] for task in others}
    ask = partial(runtime.tell_watchdog, AskHolds())
    holder = FarHolder(hosts, runtime.clock, ask, is_first=start.incarnation == 1)
    runtime.link.on(HoldTold, holder.told)
    runtime.holder = holder


def _be_held(runtime: Runtime) -> None:
    try:
        task = HeldTask(runtime.clock)
    except (UserError, OSError) as error:  # it trains all the same, and all snapshots are mixed
        print(f"procsv: nobody can hold the steps of this task, so snapshots may mix them: {error}", file=sys.stderr)
        return
    offered = HoldOffered(task.offer)
    runtime.link.on(AskHold, lambda _: runtime.tell_watchdog(offered))
    runtime.tell_watchdog(offered)
    runtime.passage = task
