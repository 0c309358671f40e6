"""TensorFlow's distributed training: processes that serve variables, members of a collective.

The bootstrap calls this; it acts once the program has imported TensorFlow.

A process that serves variables to others (`server.join()` of a parameter server) trains nothing
itself.  It stays in one endless call, which neither an exception nor a signal handler can reach.
It has nothing to save: the chief saves its variables.

The watchdog learns about a collective strategy (MultiWorkerMirroredStrategy).  TensorFlow's own
service tells the members of a collective that one of them is gone: a killed one immediately, by its
connection, a frozen one after ten seconds without a heartbeat.  A shorter limit would end healthy
members while a collective forms on a busy machine, and the limit cannot be changed afterwards.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
from typing import Any

from procsv.base import exit_codes
from procsv.base.cluster import PS
from procsv.base.run.manifest import Reason
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.process.after_import import call_after_import
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import say

_calls: dict[str, Any] = {}  # TensorFlow's own table keeps no references


def watch_servers(runtime: Runtime) -> None:
    """Marks `join` on the main thread as serving, and ends the process when the run must end."""

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
    """Lets the chief's ops in this process capture its variables.

    If a version of TensorFlow lacks the table, the chief reports that it does not find the
    captures.
    """
    # Imported only now, because `servers` imports NumPy, which the program has imported by now.
    servers: Any = importlib.import_module("procsv.training.servers")
    script_ops: Any = importlib.import_module("tensorflow.python.ops.script_ops")
    table = getattr(getattr(script_ops, "_py_funcs", None), "_funcs", None)
    if table is not None:
        kept = servers.KeptViews(runtime.connection.paths.shm_dir)
        _calls.update({servers.TAKE: kept.capture_views, servers.COPY: kept.copy})
        table.update(_calls)


def _end(reason: Reason) -> None:
    """Ends the server, on the link's thread; its clients notice by their connections."""
    say(f"asked to stop ({reason}): ending the server")
    os._exit(exit_codes.RESUMABLE)


def watch_collectives(runtime: Runtime) -> None:
    """Tells the watchdog when the program configures TensorFlow's service of a collective."""
    if len(runtime.connection.start.settings.tasks) < 2:
        return

    def watch() -> None:
        context: Any = importlib.import_module("tensorflow.python.eager.context").Context
        configure = getattr(context, "configure_coordination_service", None)
        if configure is None:
            return  # `--restart gang` reports what then goes unnoticed

        @functools.wraps(configure)
        def configured(self: Any, *args: Any, **more: Any) -> Any:
            if runtime.is_connected:
                runtime.train_in_step()
            return configure(self, *args, **more)

        context.configure_coordination_service = configured

    call_after_import("tensorflow", watch)
