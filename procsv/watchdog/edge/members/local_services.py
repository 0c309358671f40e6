"""Local services of a member: what its task finds on this machine where the watchdog and the services of the coordinator would be.

Made by member.py, heard by member_loop.py.  The sockets lie where those of the run lie on the coordinator's machine, in directories of
the member's own.
"""

from __future__ import annotations

from functools import partial

from procsv.base.clock import Clock
from procsv.base.identity import CHECKPOINT, SUMMARY, WATCHDOG, TaskId
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Context, Server, Waiter
from procsv.watchdog.edge.console import Console
from procsv.watchdog.edge.members.stand_in import StandIn
from procsv.watchdog.edge.members.summary_stand_in import SummaryStandIn


class LocalServices:
    """`control` is the watchdog's socket; `checkpoint` and `summary` stand in for those services."""

    def __init__(self, start: Start, task: TaskId, host: str, context: Context, clock: Clock, console: Console) -> None:
        """`host`: the coordinator's machine.  OSError if a socket cannot be made."""
        paths, run, self._console = start.paths, start.run, console
        self.control = Server(context, paths.control_socket, Address(run, WATCHDOG, 1), clock)
        service = Server(context, paths.service_socket(CHECKPOINT), Address(run, CHECKPOINT, 1), clock)
        self.checkpoint = StandIn(service, start, host, clock, partial(console.say, is_bad=True))
        events = Server(context, paths.service_socket(SUMMARY), Address(run, SUMMARY, 1), clock)
        self.summary = SummaryStandIn(events, task, paths, clock)

    def listen(self, waiter: Waiter) -> None:
        waiter.add(self.control)
        self.checkpoint.listen(waiter)
        self.summary.listen(waiter)

    def close(self) -> None:
        """Says which event records are lost, if any are."""
        self.control.close()
        self.checkpoint.close()
        if lost := self.summary.what_is_lost():
            self._console.say(lost, is_bad=True)
        self.summary.close()
