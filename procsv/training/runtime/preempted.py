"""`procsv.preempted`: ask whether the machine is about to go away."""

from __future__ import annotations

from procsv.training.runtime.context import current


def preempted() -> bool:
    """Whether this process was told to save and end because its machine, or its watchdog, goes away.

    `sv.should_stop()` is true then, too, and the state is being saved; a program need not ask.  It serves programs that
    have something of their own to do, such as cutting an evaluation short.  Without `procsv launch` it is False.
    """
    runtime = current()
    return runtime is not None and runtime.stop_reason == "preempt"
