"""One hold of the steps of other tasks, and its limits, wherever the tasks are.  Pure."""

from __future__ import annotations

import msgspec

HELD_S_MAX = 0.05  # from the moment at which all stand at a boundary; then they go on
GATHER_S_MAX = 2.0  # until then; the wait is given up
SETTLE_S = 1.0  # after a task died in a step: the servers may still be at it
GATHER_STEPS = 2  # of the chief, as long as that a capture waits for the steps of the others to end


class Hold(msgspec.Struct):
    """One hold, and what became of it."""

    why: str = ""  # why not all were held
    held_s: float = 0.0  # how long steps were kept from beginning
    is_whole: bool = False  # at the end: no other task was in a step at any time of it


def gather_s_of(step_s: float) -> float:
    """How long a capture waits for the steps of the others to end, where one of the chief's takes `step_s`."""
    return max(HELD_S_MAX, GATHER_STEPS * step_s)
