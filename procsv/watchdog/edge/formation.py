"""Form a run: settle which launch hosts which of its tasks, before anything is started.

Used by main.py. Here one launch has all tasks; for a run on several machines,
machines/coordinator.py gathers the other launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from procsv.base.cluster import make_cluster
from procsv.base.errors import UserError
from procsv.base.journal.entries import Entry
from procsv.ipc.messaging.start import Start
from procsv.watchdog.edge.environment import RemoteHost
from procsv.watchdog.edge.launch import Launch
from procsv.watchdog.edge.opening.open_run import OpenedRun


class Formed(msgspec.Struct, frozen=True):
    start: Start  # with the tasks' addresses, and the task whose state is saved; unchanged for a single trainer
    remote: RemoteHost | None  # the tasks that other launches host, if any
    entries: Sequence[Entry] = ()  # journal entries about how the tasks came


class Formation(Protocol):
    def refuse(self, launch: Launch, error: UserError) -> None:
        """Tell the launches that wait for this one that there is no run, and why."""

    def form(self, launch: Launch, opened: OpenedRun) -> Formed:
        """Settle which launch hosts which task; the directory is already taken. UserError if the
        run must not begin.
        """

    def withdraw(self, start: Start) -> None:
        """The run is over: remove what says where to join it."""


class OneMachine:
    """All tasks are in this launch."""

    def refuse(self, launch: Launch, error: UserError) -> None:
        """No other launch waits."""

    def form(self, launch: Launch, opened: OpenedRun) -> Formed:
        start, tasks = launch.start, launch.start.settings.tasks
        if not tasks:
            return Formed(start, None)
        cluster = make_cluster(launch.ports.hold(tasks))
        return Formed(msgspec.structs.replace(start, chief=tasks[0], cluster=cluster), None)

    def withdraw(self, start: Start) -> None:
        """No launch could join."""
