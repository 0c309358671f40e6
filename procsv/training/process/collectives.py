"""Collective strategies (MultiWorkerMirroredStrategy): the watchdog is told of one, and a frozen member is noticed sooner.

Called by the bootstrap; acts once the program has imported TensorFlow, and when it makes such a strategy.  TensorFlow has a service
of its own by which the members of a collective notice that one of them is gone.  A killed one is seen at once, by its
connection; a frozen one when its heartbeat is missing, which TensorFlow waits ten seconds for.  No variable of the environment
sets that.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from procsv.ipc.messaging.watchdog_messages import TrainsInStep
from procsv.training.process.after_import import call_after_import
from procsv.training.runtime.context import Runtime

HEARTBEAT_MS = 3000  # the heartbeat comes from a thread of its own, which needs neither Python nor a step to end
HEARTBEAT = "heartbeat_timeout_in_ms"
BEFORE_IT = 4  # arguments, where they are given by position


def watch_collectives(runtime: Runtime) -> None:
    """Has TensorFlow's service of a collective known to the watchdog; what the program has set itself stays."""
    if len(runtime.start.settings.tasks) < 2:
        return

    def watch() -> None:
        context: Any = importlib.import_module("tensorflow.python.eager.context").Context
        configure = getattr(context, "configure_coordination_service", None)
        if configure is None:
            return  # `--restart gang` says what cannot be seen then

        @functools.wraps(configure)
        def configured(self: Any, *args: Any, **more: Any) -> Any:
            if runtime.is_connected:
                runtime.tell_watchdog(TrainsInStep())
            if len(args) <= BEFORE_IT:
                more[HEARTBEAT] = more.get(HEARTBEAT) or HEARTBEAT_MS
            return configure(self, *args, **more)

        context.configure_coordination_service = configured

    call_after_import("tensorflow", watch)
