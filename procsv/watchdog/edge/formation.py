"""Formation of a run: which launch hosts which of its tasks, settled before anything is started.

Asked by main.py.  Here a launch has all tasks itself; of a run on several machines, machines/coordinator.py gathers the other launches.
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
    start: Start  # with the addresses of the run's tasks, and the one whose state is saved; unchanged if it has a trainer alone
    remote: RemoteHost | None  # the tasks that other launches host; None: there are none
    entries: Sequence[Entry] = ()  # what is to stand in the journal of how they came


class Formation(Protocol):
    def refuse(self, launch: Launch, error: UserError) -> None:
        """Tells the launches that wait for this one that there is no run, and why."""

    def form(self, launch: Launch, opened: OpenedRun) -> Formed:
        """The directory is ours: settles who hosts which task.  UserError if the run is not to begin."""

    def withdraw(self, start: Start) -> None:
        """The run is over: what says where it can be joined goes."""


class OneMachine:
    """All tasks are this launch's."""

    def refuse(self, launch: Launch, error: UserError) -> None:
        """Nobody waits."""

    def form(self, launch: Launch, opened: OpenedRun) -> Formed:
        start, tasks = launch.start, launch.start.settings.tasks
        if not tasks:
            return Formed(start, None)
        cluster = make_cluster(launch.ports.hold(tasks))
        return Formed(msgspec.structs.replace(start, chief=tasks[0], cluster=cluster), None)

    def withdraw(self, start: Start) -> None:
        """Nobody joins it."""
