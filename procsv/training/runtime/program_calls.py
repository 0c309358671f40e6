"""`procsv.extend` and `procsv.preempted`: what a program may tell its run, and ask of it; and what its arguments may leave to the run."""

from __future__ import annotations

import enum
import math
from typing import Literal

from procsv.training.runtime.context import current, watched


class Default(enum.Enum):
    """Stand-ins for arguments that the program does not give; an editor and `help` show their names."""

    FROM_COMMAND_LINE = enum.auto()  # as `procsv launch --snapshot-secs` says: "auto" without it

    def __repr__(self) -> str:
        return self.name


FROM_COMMAND_LINE = Default.FROM_COMMAND_LINE
SnapshotSecs = float | Literal["auto"] | Default | None


def extend(seconds: float) -> None:
    """Keeps the watchdog from taking the next `seconds` for a hang, whatever the program does meanwhile.

    Use it before what takes longer than a step or an import may and calls no session: loading data, say, or an evaluation
    outside of TensorFlow.  It never shortens what is allowed already.  Without `procsv launch` a program is watched while a
    session is open; else this does nothing.

    Raises:
        ValueError: `seconds` is not a number from 0 on.
    """
    if not 0 <= seconds < math.inf:
        raise ValueError(f"procsv.extend takes a number of seconds from 0 on, not {seconds}")
    for runtime in {current(), *watched()}:
        if runtime is not None:
            runtime.heartbeat.extend_limit(seconds)


def preempted() -> bool:
    """Whether this process was told to save and end because its machine, or its watchdog, goes away.

    `sv.should_stop()` is true then, too, and the state is being saved; a program need not ask.  It serves programs that
    have something of their own to do, such as cutting an evaluation short.  Without `procsv launch` it is False.
    """
    runtime = current()
    return runtime is not None and runtime.stops.reason == "preempt"
