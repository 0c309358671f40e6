"""The default fault plan of a drill: what happens to long runs most often, spread over the training.

Used by runner.py when the training without faults has shown how long it is.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from procsv.base.cluster import EVALUATOR, PS, WORKER, role_of
from procsv.base.errors import UserError
from procsv.faults.plan import Fault, Plan, on_machine_of

STEPS_MIN = 20

_SPREAD: tuple[tuple[float, Fault], ...] = (
    (0.15, Fault("trainer", "kill")),
    (0.25, Fault("checkpoint", "kill")),
    (0.35, Fault("trainer", "raise")),
    (0.45, Fault("summary", "kill")),
    (0.55, Fault("trainer", "preempt", 30.0)),
    (0.65, Fault("trainer", "segfault")),
    (0.75, Fault("trainer", "stop", 2.0)),
    (0.85, Fault("watchdog", "kill")),
)


# Where there are several tasks, one of each kind beside the trainer, which is then the task whose state is saved.
_OF_TASKS: tuple[tuple[float, str], ...] = ((0.2, WORKER), (0.5, PS), (0.7, EVALUATOR))


# Where each task has a launch of its own: a task of each kind, then machines.  The last one goes with the coordinator.
_KILLED_TASKS: tuple[tuple[float, str], ...] = ((0.2, WORKER), (0.3, PS))
STANDS_STILL, IS_CUT_OFF = (
    0.3,
    2.0,
)  # peer timeouts: nobody is to end for the one, and the run is to do without the other


def plan_for_machines(steps: int, tasks: Sequence[str], peer_timeout_s: float) -> Plan:
    """For a training of that many global steps and a launch for each of `tasks`, that whose state is saved first.

    UserError if the steps are too few to spread anything over.
    """
    _check_length(steps)
    last = {role_of(task): task for task in tasks[1:]}
    killed = [(share, Fault(last[role], "kill")) for share, role in _KILLED_TASKS if role in last]
    other = on_machine_of(last.get(WORKER, tasks[-1]))
    spread = [
        (0.1, Fault(tasks[0], "kill")),
        *killed,
        (0.4, Fault(other, "kill")),
        (0.55, Fault(other, "stop", STANDS_STILL * peer_timeout_s)),
        (0.7, Fault(other, "cut", IS_CUT_OFF * peer_timeout_s)),
        (0.85, Fault(on_machine_of(tasks[0]), "kill")),
    ]
    return _at_steps(spread, steps)


def default_plan(steps: int, tasks: Sequence[str] = ()) -> Plan:
    """For a training of that many global steps; UserError if they are too few to spread anything over.

    `tasks`: their names, that whose state is saved first; none: a trainer alone.
    """
    _check_length(steps)
    spread = list(_SPREAD)
    for share, role in _OF_TASKS:
        last = next((task for task in reversed(tasks[1:]) if role_of(task) == role), None)
        spread += [(share, Fault(last, "kill"))] if last is not None else []
    return _at_steps(spread, steps)


def _check_length(steps: int) -> None:
    if steps < STEPS_MIN:
        raise UserError(
            f"the training ends after {max(steps, 0)} global steps; a drill needs at least {STEPS_MIN}. "
            "Let it train longer, or give the faults with --plan"
        )


def _at_steps(spread: Sequence[tuple[float, Fault]], steps: int) -> Plan:
    in_order = sorted(spread, key=lambda one: one[0])
    return Plan(tuple(msgspec.structs.replace(fault, at_step=round(steps * share)) for share, fault in in_order))
