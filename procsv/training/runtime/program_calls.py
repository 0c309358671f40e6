"""`procsv.extend` and `procsv.preempted`, and arguments that leave a choice to the run."""

from __future__ import annotations

import enum
import math
from typing import Literal

from procsv.training.runtime.context import current, watched


class Default(enum.Enum):
    """Markers for arguments that the program does not give; editors and `help` show their names."""

    FROM_COMMAND_LINE = enum.auto()  # the value of `procsv launch --snapshot-secs`, or "auto"

    def __repr__(self) -> str:
        return self.name


FROM_COMMAND_LINE = Default.FROM_COMMAND_LINE
SnapshotSecs = float | Literal["auto"] | Default | None


def extend(seconds: float) -> None:
    """Keeps the watchdog from taking the next `seconds` for a hang.

    Use it before long work outside of any session, such as loading data or an evaluation outside of
    TensorFlow.  It never shortens the present limit.  Without `procsv launch` a program is watched
    only while a session is open; at other times this does nothing.

    Raises:
        ValueError: `seconds` is negative, infinite or not a number.
    """
    if not 0 <= seconds < math.inf:
        raise ValueError(f"procsv.extend: seconds must be a finite number of at least 0, not {seconds}")
    for runtime in {current(), *watched()}:
        if runtime is not None:
            runtime.heartbeat.extend_limit(seconds)


def preempted() -> bool:
    """Whether this process must save and end because its machine or its watchdog goes away.

    `sv.should_stop()` is then also true, and the state is being saved, so most programs need not
    ask.  Use it for other work before the end, such as cutting an evaluation short.  Without
    `procsv launch` it is False.
    """
    runtime = current()
    return runtime is not None and runtime.stops.reason == "preempt"
