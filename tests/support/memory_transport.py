"""A network in memory with the endpoints of zmq_transport.py and a carrier that can lose, delay and
repeat messages.

`FakeServer(network, path, me, clock)` replaces `Server(context, path, me, clock)`;
tests/ipc/messaging/test_transport_contract.py runs the same contract on both. Time moves only with
the FakeClock, chance comes from one seed, and nothing here touches a socket, a file or a thread.
"""

from __future__ import annotations

import heapq
import itertools
import random
from pathlib import Path

from procsv.base.errors import ProcsvBug
from procsv.ipc.messaging.endpoint import Address, ClientEndpoint, Put, ServerEndpoint
from tests.support.fake_clock import FakeClock


class _Mailbox:
    """Messages on their way to one endpoint, by arrival time."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._under_way: list[tuple[float, int, list[bytes]]] = []
        self._numbers = itertools.count()

    def add(self, delay_s: float, frames: list[bytes]) -> None:
        heapq.heappush(self._under_way, (self._clock.monotonic() + delay_s, next(self._numbers), frames))

    def take(self) -> list[bytes] | None:
        if self._under_way and self._under_way[0][0] <= self._clock.monotonic():
            return heapq.heappop(self._under_way)[2]
        return None


class FakeNetwork:
    """Connects each server path with its clients. Tests set how bad the network is at any time.

    `loss` and `duplication` are probabilities. Each message takes up to `delay_s_max`, so that
    messages overtake each other.
    """

    def __init__(self, clock: FakeClock, seed: int = 0) -> None:
        self.clock = clock
        self.loss = 0.0
        self.duplication = 0.0
        self.delay_s_max = 0.0
        self._chance = random.Random(seed)
        self._servers: dict[Path, FakeServer] = {}
        self._clients: dict[bytes, FakeClient] = {}
        self._numbers = itertools.count(1)

    def cut(self, client: FakeClient) -> None:
        """Break a connection. The client reconnects at once."""
        client.leave()
        self._connect()

    def take_away(self, client: FakeClient) -> None:
        """Break a connection. The client reconnects only after `bring_back`."""
        client.is_away = True
        client.leave()

    def bring_back(self, client: FakeClient) -> None:
        client.is_away = False
        self._connect()

    def carry(self, mailbox: _Mailbox, frames: list[bytes]) -> None:
        if self._chance.random() < self.loss:
            return
        for _ in range(1 + (self._chance.random() < self.duplication)):
            mailbox.add(self._chance.random() * self.delay_s_max, frames)

    def open(self, server: FakeServer) -> None:
        if server.path in self._servers:
            raise ProcsvBug(f"two servers on {server.path}")
        self._servers[server.path] = server
        self._connect()

    def shut(self, server: FakeServer) -> None:
        if self._servers.get(server.path) is server:
            del self._servers[server.path]
        for client in self._clients.values():
            if client.server is server:
                client.leave()

    def join(self, client: FakeClient) -> bytes:
        """Add a client and return the key that servers know it by."""
        who = f"{client.me.task}.{client.me.incarnation}.{next(self._numbers)}".encode()
        self._clients[who] = client
        self._connect()
        return who

    def part(self, client: FakeClient) -> None:
        self._clients.pop(client.who, None)

    def client(self, who: bytes) -> FakeClient | None:
        return self._clients.get(who)

    def is_open(self, server: FakeServer) -> bool:
        return self._servers.get(server.path) is server

    def _connect(self) -> None:
        for client in self._clients.values():
            server = self._servers.get(client.path)
            if client.server is None and server is not None and not client.is_away:
                client.meet(server)


class FakeServer(ServerEndpoint):
    """A server in memory. Its clients cannot tell `close` from a kill."""

    def __init__(self, network: FakeNetwork, path: Path, me: Address, clock: FakeClock) -> None:
        super().__init__(me, clock)
        self.path = path
        self.mailbox = _Mailbox(clock)
        self._network = network
        network.open(self)

    def _put(self, frames: list[bytes]) -> Put:
        client = self._network.client(frames[0])
        if client is None or client.server is not self:
            return Put.NOBODY
        self._network.carry(client.mailbox, frames[1:])
        return Put.TAKEN

    def _take(self) -> list[bytes] | None:
        return self.mailbox.take()

    def is_in_place(self) -> bool:
        return self._network.is_open(self)

    def close(self) -> None:
        self._network.shut(self)


class FakeClient(ClientEndpoint):
    """A client in memory."""

    def __init__(self, network: FakeNetwork, path: Path, me: Address, clock: FakeClock) -> None:
        super().__init__(me, clock)
        self.path = path
        self.mailbox = _Mailbox(clock)
        self.server: FakeServer | None = None
        self.is_away = False
        self._made = 0  # connections that `resend_due` has not reported yet
        self._network = network
        self.who = network.join(self)

    def meet(self, server: FakeServer) -> None:
        self.server = server
        self._made += 1

    def leave(self) -> None:
        self.server = None

    def _put(self, frames: list[bytes]) -> Put:
        return self.put_raw(frames) if not self._made else Put.FULL

    def put_raw(self, frames: list[bytes]) -> Put:
        """Send any frames at all, as a foreign peer might."""
        if self.server is None:
            return Put.FULL
        self._network.carry(self.server.mailbox, [self.who, *frames])
        return Put.TAKEN

    def _take(self) -> list[bytes] | None:
        return self.mailbox.take()

    def _new_connections(self) -> int:
        made, self._made = self._made, 0
        return made

    def close(self, linger_ms: int = 0) -> None:
        self._network.part(self)
        self.leave()


__all__ = ["FakeClient", "FakeNetwork", "FakeServer"]
