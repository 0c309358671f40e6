"""Strangers at a TCP port cost its process only a few descriptors, whatever they send."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.bulk.sockets import BulkServer
from procsv.ipc.messaging.curve_transport import KeyPair, TcpClient, TcpServer
from procsv.ipc.messaging.door import where_to_listen
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.member_messages import TaskCleared
from procsv.ipc.messaging.zmq_transport import Context, Waiter, new_context
from tests.support.flood import flood
from tests.support.launched import NEWS_S_MAX

CLOCK, KEYS, THEIRS, WORKER = SystemClock(), KeyPair.new(), KeyPair.new(), TaskId("worker", 0)
FREE, STRANGERS = 400, 100  # free descriptors of a server, and the strangers that it may then accept
SLACK = 100  # connections never accepted: the kernel queues some, and some arrive during a poll


@contextmanager
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free() + FREE, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def lowest_free() -> int:
    fd = os.dup(0)
    os.close(fd)
    return fd


def make_server(context: Context) -> TcpServer:
    return TcpServer(context, 0, KEYS, {THEIRS.public: "member.1"}, Address("run", WATCHDOG, 1), CLOCK)


class Ends:
    """A server, and clients that have one of the run's keys."""

    def __init__(self, held: ExitStack) -> None:
        self._held, self.context, self._waiter = held, new_context(), Waiter()
        held.callback(self.context.term)
        self.server = make_server(self.context)
        held.callback(self.server.close)
        self._waiter.register(self.server)

    def speak(self, client: TcpClient | None = None) -> TcpClient:
        """Wait until that client, or a new one, is heard."""
        if client is None:
            at, me = f"127.0.0.1:{self.server.port}", Address("run", TaskId("member", 1), 1)
            client = TcpClient(self.context, at, THEIRS, KEYS.public, me, CLOCK)
            self._held.callback(client.close, linger_ms=0)
            self._waiter.register(client)
        seq = client.send_reliable(TaskCleared(WORKER, 1))

        def is_heard() -> bool:
            client.resend_due()
            if (received := self.server.receive()) is None:
                return False
            self.server.acknowledge(received)
            return received.seq == seq

        self.until(is_heard)
        return client

    def until(self, has_come: Callable[[], bool]) -> None:
        deadline_s = CLOCK.monotonic() + NEWS_S_MAX
        while not has_come():
            assert CLOCK.monotonic() < deadline_s
            self._waiter.wait(0.05)


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_a_flood_of_silent_connections_takes_only_a_share_of_the_descriptors_and_cuts_nobody_off(
    held: ExitStack,
) -> None:
    with few_descriptors():
        ends = Ends(held)
        member, before = ends.speak(), lowest_free()
        highest = 0

        def has_seen_many() -> bool:
            nonlocal highest
            highest = max(highest, lowest_free())
            ends.speak(member)
            return ends.server.refused > STRANGERS and highest - before > STRANGERS // 2

        with flood(ends.server.port):
            ends.until(has_seen_many)
        assert highest - before < FREE - SLACK
        assert member.connections == 1, "who was there stays"
        ends.speak()


def test_a_silent_client_and_one_that_sends_nonsense_are_disconnected_and_counted(held: ExitStack) -> None:
    ends = Ends(held)
    member = ends.speak()
    for said in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(63)):
        stranger = held.enter_context(socket.create_connection(("127.0.0.1", ends.server.port)))
        stranger.sendall(said)
    ends.until(lambda: ends.server.refused == 3)
    ends.speak(member)
    assert member.connections == 1
    assert ends.server.refused == 3


def test_a_snapshot_port_is_guarded_the_same_way(held: ExitStack) -> None:
    wake_fd = os.eventfd(0)
    held.callback(os.close, wake_fd)
    server = BulkServer(0, KEYS, THEIRS.public, wake_fd, 8)
    held.callback(server.close)
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.settimeout(NEWS_S_MAX)
        while stranger.recv(1024):
            pass  # its greeting and then the end


def test_the_ports_listen_at_the_given_address_of_this_machine(
    held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCSV_HOST", "127.0.0.2")
    ends = Ends(held)
    held.enter_context(socket.create_connection(("127.0.0.2", ends.server.port)))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ends.server.port))


@pytest.mark.parametrize(
    ("host", "addresses", "why"),
    [
        ("", [], ""),
        ("127.0.0.1", ["127.0.0.1"], ""),
        ("192.0.2.1", [], "PROCSV_HOST=192.0.2.1 "),
        ("no-such.invalid", [], "PROCSV_HOST=no-such.invalid is not found"),
    ],
)
def test_a_given_name_that_is_no_address_here_means_all_addresses_and_is_reported(
    host: str, addresses: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCSV_HOST", host)
    found, said = where_to_listen()
    assert found == addresses
    assert said.startswith(why)
    assert bool(said) == bool(why)


def test_a_name_that_only_this_machine_resolves_is_not_an_address_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCSV_HOST", "n1")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("127.0.1.1", 0))])
    assert where_to_listen()[0] == []
