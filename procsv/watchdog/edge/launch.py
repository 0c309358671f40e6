"""Hold what a launch has before its run begins.

That is what it was started with, and its part of the machine.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Self

import psutil

from procsv.base.clock import Clock
from procsv.base.run.lease import Lease, find_place
from procsv.base.system.processes import identify
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.start import Start
from procsv.watchdog.edge.console import Console
from procsv.watchdog.edge.opening.logdir_lease import Wait
from procsv.watchdog.edge.opening.run_lock import OpenRequest
from procsv.watchdog.edge.resources.held_ports import HeldPorts
from procsv.watchdog.edge.signals import Signals, Unwanted, wait_unless_stopped


class Launch(NamedTuple):
    start: Start
    clock: Clock
    signals: Signals
    console: Console
    ports: HeldPorts

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds`; Unwanted if a signal asks for the end."""
        wait_unless_stopped(self.signals, seconds)

    def request(self, what: str, wait: Wait) -> OpenRequest:
        """Return the request to open this launch's run.

        `what`: names the launch, for people who find the directory in use. `wait` raises if the run
        is no longer wanted.
        """
        return OpenRequest(
            paths=self.start.paths,
            us=_make_lease(self.start, what, self.clock.wall()),
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
    """Return our lease of the logdir; Unwanted if the program to observe has ended."""
    try:
        process = identify(start.observes or os.getpid())
    except psutil.NoSuchProcess:
        raise Unwanted("the program has ended") from None
    return Lease(
        run=start.run,
        place=find_place(),
        pid=process.pid,
        started=process.started,
        what=what,
        since=wall_s,
        renewed=wall_s,
    )
