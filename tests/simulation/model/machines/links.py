"""The network between simulated machines: healthy, slow, or cut one way or both, and the two ends
of the link between watchdogs.

It behaves as TCP and ZeroMQ do. While a connection lives, messages arrive in order, and late rather
than never. It breaks, and loses what is in transit, once one end has heard nothing for a while, and
is made again when packets get through both ways.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from random import Random

from procsv.base.clock import Clock
from procsv.ipc.messaging.curve_transport import DEAD_AFTER_MS
from procsv.ipc.messaging.endpoint import Address, ClientEndpoint, Put, ServerEndpoint
from tests.simulation.model.clock import SimClock
from tests.simulation.model.network import LATENCY_S, EndInMemory

DEAD_AFTER_S = DEAD_AFTER_MS / 1000
CONNECT_S_MAX = 0.6  # ZeroMQ's back-off
SCHEDULER, STORAGE = "scheduler", "storage"  # network ends other than machines


class Links:
    """Which machine's packets reach which other one, and how late."""

    def __init__(self, clock: SimClock, rng: Random) -> None:
        self.clock, self.rng = clock, rng
        self.delay_s: dict[str, float] = {}  # the most, for a slow machine
        self.servers: dict[int, LinkServer] = {}  # by port
        self.clients: list[LinkClient] = []
        self._cut: dict[tuple[str, str], int] = {}  # how many faults cut it at present
        self._numbers = itertools.count(1)

    def goes(self, source: str, target: str) -> bool:
        return source == target or not self._cut.get((source, target))

    def joins(self, one: str, other: str) -> bool:
        return self.goes(one, other) and self.goes(other, one)

    def cut(self, source: str, target: str, seconds: float) -> None:
        """Let no packet through that way for that long."""
        way = (source, target)
        self._cut[way] = self._cut.get(way, 0) + 1
        self.clock.after(seconds, lambda: self._mend(way))
        self.clock.after(DEAD_AFTER_S, lambda: self._give_up(way))

    def _mend(self, way: tuple[str, str]) -> None:
        self._cut[way] -= 1
        for client in self.clients:
            client.way_is_back()

    def _give_up(self, way: tuple[str, str]) -> None:
        if not self.goes(*way):
            self.break_connections(lambda one, other: (one, other) in (way, way[::-1]))

    def break_connections(self, meant: Callable[[str, str], bool]) -> None:
        """Break connections. `meant` chooses by the client's and the server's machine."""
        for client in self.clients:
            if client.server is not None and meant(client.machine, client.server.machine):
                client.lose_connection()

    def latency_s(self, source: str, target: str) -> float:
        slow_s = max(self.delay_s.get(source, 0.0), self.delay_s.get(target, 0.0))
        return LATENCY_S + slow_s * self.rng.random()

    def new_name(self, who: str) -> bytes:
        return f"{who}.{next(self._numbers)}".encode()


class Lane:
    """One direction of one connection."""

    def __init__(self, links: Links, source: str, target: str, deliver: Callable[[list[bytes]], None]) -> None:
        self._links, self._way, self._deliver = links, (source, target), deliver
        self._held: deque[list[bytes]] = deque()
        self._last_s = 0.0
        self.is_open = True

    def carry(self, frames: list[bytes]) -> None:
        links = self._links
        self._last_s = max(self._last_s, links.clock.now_s + links.latency_s(*self._way))
        self._held.append(frames)
        links.clock.at(self._last_s, self.flush)

    def flush(self) -> None:
        """Deliver what is due, if packets get through."""
        now_s = self._links.clock.now_s
        if self.is_open and self._held and self._links.goes(*self._way):
            self._deliver(self._held.popleft())
            if self._held and self._last_s <= now_s:
                self._links.clock.after(0.0, self.flush)


class LinkServer(EndInMemory, ServerEndpoint):
    """A TcpServer in this network. Frames to and from a client begin with its name."""

    def __init__(
        self, links: Links, machine: str, port: int, me: Address, clock: Clock, wake: Callable[[], None]
    ) -> None:
        super().__init__(me, clock)
        self._wake = wake
        self.machine, self.port, self._links = machine, port, links
        self.lanes: dict[bytes, Lane] = {}  # to the clients
        links.servers[port] = self
        for client in links.clients:
            client.way_is_back()

    def _put(self, frames: list[bytes]) -> Put:
        lane = self.lanes.get(frames[0])
        if lane is None:
            return Put.NOBODY
        lane.carry(frames[1:])
        return Put.TAKEN

    def close(self) -> None:
        """Close. What was sent still arrives, because sockets linger."""
        self.is_open = False
        self._links.servers.pop(self.port, None)
        for client in self._links.clients:
            if client.server is self:
                client.part()


class LinkClient(EndInMemory, ClientEndpoint):
    """A TcpClient in this network, which keeps connecting to a port."""

    def __init__(
        self, links: Links, machine: str, port: int, me: Address, clock: Clock, wake: Callable[[], None]
    ) -> None:
        super().__init__(me, clock)
        self._wake = wake
        self.machine, self.port, self._links = machine, port, links
        self.who = links.new_name(f"{me.task}.{me.incarnation}")
        self.server: LinkServer | None = None
        self._is_trying = False
        self._lane: Lane | None = None
        links.clients.append(self)
        self.way_is_back()

    # -- the connection --------------------------------------------------------------------------------------
    def way_is_back(self) -> None:
        """Connect if there is no connection. Delayed messages arrive."""
        if self.server is not None and self._lane is not None:
            self._lane.flush()
            if (lane := self.server.lanes.get(self.who)) is not None:
                lane.flush()
        elif not self._is_trying and self.is_open:
            self._is_trying = True
            self._links.clock.after(self._links.rng.uniform(0.001, CONNECT_S_MAX), self._connect)

    def _connect(self) -> None:
        self._is_trying = False
        server = self._links.servers.get(self.port)
        if not self.is_open or self.server is not None or server is None:
            return
        if not self._links.joins(self.machine, server.machine):
            return
        self.server = server
        self._lane = Lane(self._links, self.machine, server.machine, server.deliver)
        server.lanes[self.who] = Lane(self._links, server.machine, self.machine, self.deliver)
        self.made += 1
        self._wake()

    def lose_connection(self) -> None:
        """Lose the connection with everything in transit."""
        for lane in self._lanes():
            lane.is_open = False
        self.part()

    def part(self) -> None:
        """Close one of the ends. What was sent before still arrives."""
        if self.server is None:
            return
        self.server.lanes.pop(self.who, None)
        self.server = self._lane = None
        self.way_is_back()

    def _lanes(self) -> list[Lane]:
        if self.server is None or self._lane is None:
            return []
        return [self._lane, *filter(None, (self.server.lanes.get(self.who),))]

    # -- sending ---------------------------------------------------------------------------------------------
    def _put(self, frames: list[bytes]) -> Put:
        if self.made or self._lane is None:
            return Put.FULL
        self._lane.carry([self.who, *frames])
        return Put.TAKEN

    def close(self, linger_ms: int = 0) -> None:
        self.is_open = False
        self.part()
        if self in self._links.clients:
            self._links.clients.remove(self)
