"""The default fault plan of a drill: what happens to long runs most often, spread over the training.

Used by runner.py when the training without faults has shown how long it is.  Pure.
"""

from __future__ import annotations

import msgspec

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


def default_plan(steps: int) -> Plan:
    """For a training of that many global steps; UserError if they are too few to spread anything over."""
    if steps < STEPS_MIN:
        raise UserError(
            f"the training ends after {max(steps, 0)} global steps; a drill needs at least {STEPS_MIN}. "
            "Let it train longer, or give the faults with --plan"
        )
    return Plan(tuple(msgspec.structs.replace(fault, at_step=round(steps * share)) for share, fault in _SPREAD))
