"""A bad network in memory: the endpoints (checks, acknowledgements, resends) are real, the carrier
is modelled.

It behaves as ZeroMQ does: a client finds the server bound to its path, again after every break, and
messages in transit to an end that is gone are lost. The weather decides what is lost, doubled, late
or overtaken; the seed decides each message's luck.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from procsv.base.clock import Clock
from procsv.base.identity import COMMAND_LINE, WATCHDOG
from procsv.base.service_table import SERVICES
from procsv.ipc.messaging.endpoint import Address, ClientEndpoint, Endpoint, Put, Received, ServerEndpoint
from tests.simulation.model.clock import SimClock

if TYPE_CHECKING:
    from tests.simulation.model.world import World

LATENCY_S = 0.0005
RECONNECT_S = 0.1
REMEMBERED_MAX = 40  # messages of dead processes that may arrive again


@dataclass(slots=True)
class Weather:
    """Probabilities. Each message takes up to `delay_s_max`."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_s_max: float = 0.0


class SimNetwork:
    def __init__(self, clock: SimClock, rng: Random) -> None:
        self.clock, self._rng = clock, rng
        self.weather = Weather()
        self.servers: dict[Path, SimServer] = {}
        self.clients: dict[bytes, SimClient] = {}
        self.past: deque[tuple[Path, bytes, list[bytes]]] = deque(maxlen=REMEMBERED_MAX)  # past messages of trainers
        self._numbers = itertools.count(1)

    # -- connections -----------------------------------------------------------------------------------------
    def bind(self, server: SimServer) -> None:
        assert server.path not in self.servers, f"two servers on {server.path}"
        self.servers[server.path] = server
        for client in self.clients.values():
            self._reconnect(client)

    def unbind(self, server: SimServer) -> None:
        if self.servers.get(server.path) is server:
            del self.servers[server.path]
        server.is_open = False
        for client in self.clients.values():
            if client.server is server:
                client.server = None

    def join(self, client: SimClient) -> bytes:
        who = f"{client.me.task}.{client.me.incarnation}.{next(self._numbers)}".encode()
        self.clients[who] = client
        self._reconnect(client, 0.001)
        return who

    def part(self, client: SimClient) -> None:
        self.clients.pop(client.who, None)
        client.server, client.is_open = None, False

    def cut(self, path: Path) -> None:
        """Break every connection to `path`. The clients reconnect by themselves."""
        for client in self.clients.values():
            if client.path == path and client.server is not None:
                client.server = None
                self._reconnect(client)

    def _reconnect(self, client: SimClient, delay_s: float = RECONNECT_S) -> None:
        def connect() -> None:
            server = self.servers.get(client.path)
            if client.server is None and server is not None and self.clients.get(client.who) is client:
                client.connected(server)

        self.clock.after(delay_s, connect)

    # -- messages --------------------------------------------------------------------------------------------
    def carry(self, frames: list[bytes], deliver: Callable[[list[bytes]], None], is_spared: bool) -> None:
        weather = self.weather
        if is_spared or not (weather.loss or weather.duplication or weather.delay_s_max):
            self.clock.after(LATENCY_S, lambda: deliver(frames))
            return
        if self._rng.random() < weather.loss:
            return
        for _ in range(1 + (self._rng.random() < weather.duplication)):
            self.clock.after(LATENCY_S + self._rng.random() * weather.delay_s_max, lambda: deliver(frames))

    def say_again(self) -> str:
        """Deliver an old message of a trainer once more, from its sender. Return its description."""
        if not self.past:
            return ""
        path, who, frames = self.past[self._rng.randrange(len(self.past))]
        server = self.servers.get(path)
        if server is not None:
            server.deliver([who, *frames])
        return f"{who.decode()} to {path.name}"


class EndInMemory(Endpoint):
    """An endpoint whose messages are carried in memory; it calls `_wake` on news. None breaks its contract here."""

    _wake: Callable[[], None]

    def __init__(self, me: Address, clock: Clock) -> None:
        super().__init__(me, clock)
        self.is_open = True
        self.made = 0  # connections that `resend_due` has not reported yet
        self._mailbox: deque[list[bytes]] = deque()

    def count_breach(self, why: str) -> None:
        raise AssertionError(f"{self.me} was sent {why}")

    def deliver(self, frames: list[bytes]) -> None:
        if self.is_open:
            self._mailbox.append(frames)
            self._wake()

    def _take(self) -> list[bytes] | None:
        return self._mailbox.popleft() if self._mailbox else None

    def _new_connections(self) -> int:
        made, self.made = self.made, 0
        return made


class SimServer(EndInMemory, ServerEndpoint):
    """A server in this network."""

    def __init__(self, network: SimNetwork, path: Path, me: Address, clock: Clock, wake: Callable[[], None]) -> None:
        super().__init__(me, clock)
        self.path, self._network, self._wake = path, network, wake
        network.bind(self)

    def _put(self, frames: list[bytes]) -> Put:
        client = self._network.clients.get(frames[0])
        if client is None or client.server is not self:
            return Put.NOBODY
        self._network.carry(frames[1:], client.deliver, client.me.task == COMMAND_LINE)
        return Put.TAKEN

    def close(self) -> None:
        self._network.unbind(self)


class SimClient(EndInMemory, ClientEndpoint):
    """A client in this network."""

    def __init__(self, network: SimNetwork, path: Path, me: Address, clock: Clock, wake: Callable[[], None]) -> None:
        super().__init__(me, clock)
        self.path, self._network, self._wake = path, network, wake
        self.server: SimServer | None = None
        self.who = network.join(self)

    def connected(self, server: SimServer) -> None:
        self.server, self.made = server, self.made + 1
        self._wake()

    def _put(self, frames: list[bytes]) -> Put:
        if self.made or self.server is None:
            return Put.FULL
        if self.me.task.runs_program:
            self._network.past.append((self.path, self.who, frames))
        self._network.carry([self.who, *frames], self.server.deliver, self.me.task == COMMAND_LINE)
        return Put.TAKEN

    def close(self, linger_ms: int = 0) -> None:
        self._network.part(self)


class SimSockets:
    """The watchdog's sockets. They call `hear` with each message that they receive."""

    def __init__(self, world: World, run: str, wake: Callable[[], None], hear: Callable[[Received], None]) -> None:
        me, network, clock = Address(run, WATCHDOG, 1), world.network, world.clock
        self.server = _HeardServer(network, world.socket(WATCHDOG), me, clock, wake)
        self.clients = {task: _HeardClient(network, world.socket(task), me, clock, wake) for task in SERVICES}
        self.server.hear = hear
        for client in self.clients.values():
            client.hear = hear

    @property
    def wants_tick(self) -> bool:
        return any(client.wants_tick for client in self.clients.values())

    def wait_for_news(self, timeout_s: float) -> list[object]:
        raise AssertionError("in the simulation nothing waits: processes are woken")

    def restore_server(self) -> None:
        """Do nothing: nothing is ever lost."""

    def close(self) -> None:
        for client in self.clients.values():
            client.close()
        self.server.close()


class _HeardServer(SimServer):
    hear: Callable[[Received], None]

    def receive(self) -> Received | None:
        received = super().receive()
        if received is not None:
            self.hear(received)
        return received


class _HeardClient(SimClient):
    hear: Callable[[Received], None]

    def receive(self) -> Received | None:
        received = super().receive()
        if received is not None:
            self.hear(received)
        return received
