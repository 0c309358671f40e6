"""The watchdog's sockets: its own, to which trainers and commands connect, and its connections to the services."""

from __future__ import annotations

from procsv.base.clock import Clock
from procsv.base.identity import WATCHDOG
from procsv.base.service_table import SERVICES
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Client, Server, Waiter, new_context


class RunSockets:
    def __init__(self, start: Start, clock: Clock, waiter: Waiter) -> None:
        self._me, self._paths, self._waiter = Address(start.run, WATCHDOG, 1), start.paths, waiter
        self._context = new_context()
        self.server = Server(self._context, self._paths.control_socket, self._me, clock)
        waiter.add(self.server)
        self.clients = {
            task: Client(self._context, self._paths.service_socket(task), self._me, clock) for task in SERVICES
        }
        for client in self.clients.values():
            waiter.add(client)

    def wait_for_news(self, timeout_s: float) -> list[object]:
        """The things with news; empty after `timeout_s`."""
        return self._waiter.wait(timeout_s)

    def restore_server(self) -> None:
        """Binds the control socket again, of which the file is gone.  OSError or UserError if that does not go."""
        if not self.server.is_in_place():
            self.server.bind()

    def close(self) -> None:
        for client in self.clients.values():
            client.close(linger_ms=0)
        self.server.close()
        self._context.term()
