"""The default fault plan of a drill: what happens to long runs most often, spread over the training.

Used by runner.py when the training without faults has shown how long it is.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from procsv.base.cluster import EVALUATOR, PS, WORKER, role_of
from procsv.base.errors import UserError
from procsv.faults.plan import Fault, Plan

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
