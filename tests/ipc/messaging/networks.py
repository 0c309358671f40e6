"""One server path and its clients, over real sockets or in memory, with the same names for the contract tests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from procsv.base.identity import CHECKPOINT, TRAINER, TaskId
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.endpoint import Address, ClientEndpoint, Received, ServerEndpoint
from procsv.ipc.messaging.messages import Hello
from procsv.ipc.messaging.zmq_transport import Client, Server, Waiter, new_context
from tests.support.fake_clock import FakeClock
from tests.support.memory_transport import FakeClient, FakeNetwork, FakeServer

RUN = "0123456789abcdef"
DEADLINE_S = 300.0


class Wire(Protocol):
    """A network with one server path."""

    def server(self, incarnation: int = 1, run: str = RUN, task: TaskId = CHECKPOINT) -> ServerEndpoint: ...
    def client(self, task: TaskId = TRAINER, incarnation: int = 1, run: str = RUN) -> ClientEndpoint: ...
    def restart(self, server: ServerEndpoint) -> ServerEndpoint: ...
    def raw(self, client: ClientEndpoint, frames: list[bytes]) -> None: ...
    def wait(self) -> None: ...
    def close(self) -> None: ...
    def drop_client(self, client: ClientEndpoint) -> None: ...


class RealWire:
    """Unix sockets in `base`."""

    def __init__(self, base: Path) -> None:
        self._context = new_context()
        self._path = base / "it.sock"
        self._clock = SystemClock()
        self._servers: list[Server] = []
        self._clients: list[Client] = []

    def server(self, incarnation: int = 1, run: str = RUN, task: TaskId = CHECKPOINT) -> Server:
        server = Server(self._context, self._path, Address(run, task, incarnation), self._clock)
        self._servers.append(server)
        return server

    def client(self, task: TaskId = TRAINER, incarnation: int = 1, run: str = RUN) -> Client:
        client = Client(self._context, self._path, Address(run, task, incarnation), self._clock)
        self._clients.append(client)
        return client

    def restart(self, server: ServerEndpoint) -> Server:
        assert isinstance(server, Server)
        self._servers.remove(server)
        server.socket.close(0)  # as after a kill: the file stays
        return self.server(server.me.incarnation + 1, server.me.run)

    def drop_client(self, client: ClientEndpoint) -> None:
        assert isinstance(client, Client)
        self._clients.remove(client)
        client.close(0)

    def raw(self, client: ClientEndpoint, frames: list[bytes]) -> None:
        assert isinstance(client, Client)
        client.socket.send_multipart(frames)

    def wait(self) -> None:
        waiter = Waiter()
        for server in self._servers:
            waiter.register(server)
        for client in self._clients:
            waiter.register(client)
        waiter.wait(0.05)

    def close(self) -> None:
        for client in self._clients:
            client.close(0)
        for server in self._servers:
            server.close()
        self._context.term()


class FakeWire:
    """The network in memory."""

    def __init__(self, seed: int = 0) -> None:
        self.clock = FakeClock()
        self.network = FakeNetwork(self.clock, seed)
        self._path = Path("/nowhere/it.sock")

    def server(self, incarnation: int = 1, run: str = RUN, task: TaskId = CHECKPOINT) -> FakeServer:
        return FakeServer(self.network, self._path, Address(run, task, incarnation), self.clock)

    def client(self, task: TaskId = TRAINER, incarnation: int = 1, run: str = RUN) -> FakeClient:
        return FakeClient(self.network, self._path, Address(run, task, incarnation), self.clock)

    def restart(self, server: ServerEndpoint) -> FakeServer:
        assert isinstance(server, FakeServer)
        server.close()
        return self.server(server.me.incarnation + 1, server.me.run)

    def drop_client(self, client: ClientEndpoint) -> None:
        assert isinstance(client, FakeClient)
        client.close()

    def raw(self, client: ClientEndpoint, frames: list[bytes]) -> None:
        assert isinstance(client, FakeClient)
        client.put_raw(frames)

    def wait(self) -> None:
        self.clock.advance(0.05)

    def close(self) -> None: ...


class Talk:
    """A server and clients whose loops turn together until what a test waits for has arrived.

    Every message is kept, and acknowledged while `acknowledges` is true. Each client says Hello on
    every new connection.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.server: ServerEndpoint | None = None
        self.clients: list[ClientEndpoint] = []
        self.at_server: list[Received] = []
        self.at_clients: list[Received] = []
        self.acknowledges = True
        self.greets = True

    def restart(self) -> None:
        """Kill the server and start its next incarnation."""
        assert self.server is not None
        self.server = self.wire.restart(self.server)

    def turn(self) -> None:
        self.wire.wait()
        if self.server is not None:
            while (received := self.server.receive()) is not None:
                self.at_server.append(received)
                if self.acknowledges:
                    self.server.acknowledge(received)
            self.server.resend_due()
        for client in self.clients:
            if client.resend_due() and self.greets:
                client.send_reliable(Hello(os.getpid()))
            while (received := client.receive()) is not None:
                self.at_clients.append(received)
                if self.acknowledges:
                    client.acknowledge(received)

    def until(self, what: Callable[[], object]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not what():
            assert time.monotonic() < end_s, f"waited in vain; server heard {self.at_server}, clients {self.at_clients}"
            self.turn()

    def until_all_said(self) -> None:
        self.until(lambda: not any(len(client.peer.outbox) for client in self.clients))

    def received(self, kind: type) -> list[Received]:
        """Return the server's received messages of one kind."""
        return [received for received in self.at_server if isinstance(received.body, kind)]

    def answers(self, kind: type) -> list[Received]:
        """Return the clients' received messages of one kind."""
        return [received for received in self.at_clients if isinstance(received.body, kind)]
