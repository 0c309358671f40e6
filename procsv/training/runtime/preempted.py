"""`procsv.preempted`: a program asks whether its machine is about to go away."""

from __future__ import annotations

from procsv.training.runtime.context import current


def preempted() -> bool:
    """Whether this process was told to save and end because its machine, or its watchdog, goes away.

    `sv.should_stop()` is true then, too, and the state is being saved; a program need not ask.  It is for those that have
    something of their own to do: to shorten an evaluation, to say so to a tracker.  Without `procsv launch` it is False.
    """
    runtime = current()
    return runtime is not None and runtime.stop_reason == "preempt"
