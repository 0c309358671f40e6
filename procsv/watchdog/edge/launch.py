"""This launch, whatever comes of its run: what it was started with, and what it has of its machine before anything is started."""

from __future__ import annotations

from typing import NamedTuple, Self

from procsv.base.clock import Clock
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.start import Start
from procsv.watchdog.edge.console import Console
from procsv.watchdog.edge.resources.held_ports import HeldPorts
from procsv.watchdog.edge.signals import Signals, wait_unless_stopped


class Launch(NamedTuple):
    start: Start
    clock: Clock
    signals: Signals
    console: Console
    ports: HeldPorts

    def wait(self, seconds: float) -> None:
        """Waits that long, or less; Unwanted if a signal asks for the end."""
        wait_unless_stopped(self.signals, seconds)

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
