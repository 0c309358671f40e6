"""The wait of a coordinator for its members to have heard what it has told them last.

Used by forming.py, where there is no run, and by remote_tasks.py, at the end of one.
"""

from __future__ import annotations

from procsv.base.clock import Clock
from procsv.base.identity import TaskId
from procsv.ipc.messaging.curve_transport import TcpServer
from procsv.ipc.messaging.zmq_transport import Waiter

LOOK_S = 0.05


def wait_until_heard(server: TcpServer, members: list[TaskId], clock: Clock, limit_s: float) -> None:
    """Returns once those have acknowledged all that they were told, or `limit_s` later; what they say is not heard any more."""
    waiter, deadline_s = Waiter(), clock.monotonic() + limit_s
    waiter.add(server)
    while any(map(server.unsaid, members)) and clock.monotonic() < deadline_s:
        while (received := server.receive()) is not None:
            server.acknowledge(received)
        server.tick()
        waiter.wait(LOOK_S)
