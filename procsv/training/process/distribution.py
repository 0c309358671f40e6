"""Distributed training as TensorFlow does it: processes that serve variables, and members of a collective.

Called by the bootstrap; acts once the program has imported TensorFlow.

A process that serves variables to others (`server.join()` of a parameter server) trains nothing itself.  It stands in one call without end, which hears
neither an exception nor a signal's handler, and has nothing to save: what it holds, the chief has saved.

A collective strategy (MultiWorkerMirroredStrategy) is made known to the watchdog.  TensorFlow has a service of its own by which the members of a collective notice
that one of them is gone: a killed one at once, by its connection, a frozen one when its heartbeat is missing for ten seconds.  A shorter time, which cannot be
changed once the members have met, ends healthy ones that form on a busy machine.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
from typing import Any

from procsv.base import exit_codes
from procsv.base.cluster import PS
from procsv.base.run.manifest import Reason
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.process.after_import import call_after_import
from procsv.training.runtime.context import Runtime

_calls: dict[str, Any] = {}  # TensorFlow's own table holds nothing


def watch_servers(runtime: Runtime) -> None:
    """Has the main thread's `join` of a server known as serving, and ended at once when the run is to end."""

    def watch() -> None:
        server_class: Any = importlib.import_module("tensorflow.python.training.server_lib").Server
        join = server_class.join

        @functools.wraps(join)
        def watched(server: Any) -> Any:
            if threading.current_thread() is not threading.main_thread() or not runtime.is_connected:
                return join(server)
            before = runtime.heartbeat.phase
            runtime.heartbeat.enter_phase(Phase.SERVE)
            runtime.stops.add_listener(_end)
            try:
                return join(server)
            finally:
                runtime.stops.remove_listener(_end)
                runtime.heartbeat.enter_phase(before)

        server_class.join = watched
        if runtime.connection.start.cluster and runtime.connection.start.task.role == PS:
            _offer_captures(runtime)

    call_after_import("tensorflow", watch)


def _offer_captures(runtime: Runtime) -> None:
    """Lets ops of the chief's that run in this process capture its variables.

    Where a version of TensorFlow has no such table, they are not found, which the chief says.
    """
    kept_views: Any = importlib.import_module("procsv.training.servers.kept_views")  # not before the program has NumPy
    script_ops: Any = importlib.import_module("tensorflow.python.ops.script_ops")
    table = getattr(getattr(script_ops, "_py_funcs", None), "_funcs", None)
    if table is not None:
        kept = kept_views.KeptViews(runtime.connection.paths.shm_dir)
        _calls.update({kept_views.TAKE: kept.capture_views, kept_views.COPY: kept.copy})
        table.update(_calls)


def _end(reason: Reason) -> None:
    """On the link's thread.  Whoever this process serves has lost it, and hears so by its connection."""
    print(f"procsv: asked to stop ({reason}): the server ends", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_codes.RESUMABLE)


def watch_collectives(runtime: Runtime) -> None:
    """Has TensorFlow's service of a collective known to the watchdog."""
    if len(runtime.connection.start.settings.tasks) < 2:
        return

    def watch() -> None:
        context: Any = importlib.import_module("tensorflow.python.eager.context").Context
        configure = getattr(context, "configure_coordination_service", None)
        if configure is None:
            return  # `--restart gang` says what cannot be seen then

        @functools.wraps(configure)
        def configured(self: Any, *args: Any, **more: Any) -> Any:
            if runtime.is_connected:
                runtime.train_in_step()
            return configure(self, *args, **more)

        context.configure_coordination_service = configured

    call_after_import("tensorflow", watch)
