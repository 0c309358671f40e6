"""Hold what a launch has before its run begins, and form the run.

A `Launch` has its Start (the settings and paths with which it was started), and what it uses of
this machine: clock, signals, console and ports. To form a run is to settle which launch hosts which
task, before any task is started. `OneMachine` hosts all tasks in one launch. For a run on several
machines, machines/coordinator.py gathers the other launches.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import msgspec
import psutil

from procsv.base.clock import Clock
from procsv.base.cluster import make_cluster
from procsv.base.errors import UserError
from procsv.base.journal.entries import Entry
from procsv.base.run.lease import Lease, find_place
from procsv.base.system.processes import identify
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.start import Start
from procsv.watchdog.edge.console import Console
from procsv.watchdog.edge.environment import RemoteHost
from procsv.watchdog.edge.opening.open_run import OpenedRun
from procsv.watchdog.edge.opening.run_lock import OpenRequest, Wait
from procsv.watchdog.edge.resources.held_ports import HeldPorts
from procsv.watchdog.edge.signals import Signals, StoppedBeforeStart, wait_unless_stopped

WHAT_CHARS_MAX = 1000  # a lease must stay small, so it has at most this much of the command line


class Launch(NamedTuple):
    start: Start
    clock: Clock
    signals: Signals
    console: Console
    ports: HeldPorts

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds`. StoppedBeforeStart if a signal asks for the end."""
        wait_unless_stopped(self.signals, seconds)

    def request(self, what: str, wait: Wait) -> OpenRequest:
        """Return the request to open this launch's run.

        `what`: names the launch, for people who find the directory in use. `wait`: waits, and
        raises if the run is no longer wanted.
        """
        return OpenRequest(
            paths=self.start.paths,
            us=_make_lease(self.start, what[:WHAT_CHARS_MAX], self.clock.wall()),
            clock=self.clock,
            grace_s=self.start.settings.grace_s,
            wait=wait,
            say=self.console.say,
            group_readable=self.start.settings.group_readable,
        )

    def with_start(self, start: Start) -> Self:
        return self._replace(start=start)

    def close(self) -> None:
        self.ports.close()
        self.console.finish()
        self.signals.close()


def make_launch(start: Start, console: Console) -> Launch:
    return Launch(
        start=start,
        clock=SystemClock(),
        signals=Signals(start.settings.notice_signals),
        console=console,
        ports=HeldPorts(),
    )


def _make_lease(start: Start, what: str, wall_s: float) -> Lease:
    """Return our lease of the logdir; StoppedBeforeStart if the program to observe has ended."""
    try:
        process = identify(start.observes or os.getpid())
    except psutil.NoSuchProcess:
        raise StoppedBeforeStart("the program has ended") from None
    return Lease(
        run=start.run,
        place=find_place(),
        pid=process.pid,
        started=process.started,
        what=what,
        since=wall_s,
        renewed=wall_s,
    )


class Formed(msgspec.Struct, frozen=True):
    start: Start  # the launch's, with the chief and the tasks' addresses; unchanged for a single trainer
    remote: RemoteHost | None  # the tasks that other launches host, if any
    entries: Sequence[Entry] = ()  # journal entries about forming the run, such as a fetched memory copy


class Formation(Protocol):
    def refuse(self, launch: Launch, error: UserError) -> None:
        """Tell the launches that wait for this launch that there is no run, and why."""

    def form(self, launch: Launch, opened: OpenedRun) -> Formed:
        """Settle which launch hosts which task. UserError if the run must not begin.

        Called after the launch has taken the logdir.
        """

    def withdraw(self, start: Start) -> None:
        """The run is over: remove the files that tell other launches where to join it."""


class OneMachine:
    """All tasks are in this launch."""

    def refuse(self, launch: Launch, error: UserError) -> None:
        """Do nothing: no other launch waits for this one."""

    def form(self, launch: Launch, opened: OpenedRun) -> Formed:
        start, tasks = launch.start, launch.start.settings.tasks
        if not tasks:
            return Formed(start, None)
        cluster = make_cluster(launch.ports.hold(tasks))
        return Formed(msgspec.structs.replace(start, chief=tasks[0], cluster=cluster), None)

    def withdraw(self, start: Start) -> None:
        """Do nothing: no other launch could join the run."""
