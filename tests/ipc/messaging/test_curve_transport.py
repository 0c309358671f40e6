"""Watchdogs on two machines talk over TCP, and no one without the run's keys can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
import zmq

from procsv.base.errors import ProcsvBug, UserError
from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.curve_transport import KeyPair, TcpClient, TcpServer
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.member_messages import CoordinatorBeat, KillTask, MemberBeat, TaskCleared
from procsv.ipc.messaging.zmq_transport import Waiter, new_context
from tests.support.half_open import half_open
from tests.support.launched import NEWS_S_MAX

CLOCK, WORKER = SystemClock(), TaskId("worker", 0)
COORDINATOR, MEMBER = Address("run", WATCHDOG, 1), Address("run", TaskId("member", 1), 1)
WAIT_S_MAX = 10.0


class Pair:
    """A coordinator's server and its clients, waited on in one place."""

    def __init__(self) -> None:
        self.context, self.waiter = new_context(), Waiter()
        self.server_keys, self.client_keys = KeyPair.new(), KeyPair.new()
        self.server = TcpServer(
            self.context, 0, self.server_keys, {self.client_keys.public: "member.1"}, COORDINATOR, CLOCK
        )
        self.waiter.register(self.server)
        self.clients: list[TcpClient] = []

    def connect(
        self, keys: KeyPair | None = None, server_key: str = "", port: int = 0, me: Address = MEMBER
    ) -> TcpClient:
        client = TcpClient(
            self.context,
            f"127.0.0.1:{port or self.server.port}",
            keys or self.client_keys,
            server_key or self.server_keys.public,
            me,
            CLOCK,
        )
        self.clients.append(client)
        self.waiter.register(client)
        return client

    def until(self, has_come: Callable[[], Received | None], *, limit_s: float = WAIT_S_MAX) -> Received | None:
        deadline_s = CLOCK.monotonic() + limit_s
        while (left_s := deadline_s - CLOCK.monotonic()) > 0:
            for client in self.clients:
                client.resend_due()
            if (come := has_come()) is not None:
                return come
            self.waiter.wait(min(left_s, 0.1))
        return None

    def close(self) -> None:
        for client in self.clients:
            client.close(linger_ms=0)
        self.server.close()
        self.context.term()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with closing(Pair()) as made:
        yield made


def test_holders_of_the_keys_talk_in_both_directions(pair: Pair) -> None:
    client = pair.connect()
    client.send_reliable(TaskCleared(WORKER, 3))

    heard = pair.until(pair.server.receive)

    assert heard is not None
    assert heard.body == TaskCleared(WORKER, 3)
    pair.server.send_reliable(heard.who, KillTask(WORKER, 3))
    answer = pair.until(client.receive)
    assert answer is not None
    assert answer.body == KillTask(WORKER, 3)


@contextmanager
def _plain_socket(pair: Pair) -> Iterator[zmq.Socket[bytes]]:
    socket = pair.context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(f"tcp://127.0.0.1:{pair.server.port}")
    try:
        yield socket
    finally:
        socket.close(0)


def test_a_stranger_with_keys_of_its_own_is_refused_and_counted(pair: Pair) -> None:
    stranger = pair.connect(KeyPair.new())
    stranger.send_reliable(TaskCleared(WORKER, 1))

    heard = pair.until(lambda: pair.server.receive() if not pair.server.refused else _known(pair))

    assert heard is not None, "who has the keys is heard meanwhile"
    assert heard.body == MemberBeat(1.0, WORKER)
    assert pair.server.refused >= 1


def _known(pair: Pair) -> Received | None:
    """Return news of a client that has the keys, sent right after the stranger was refused."""
    if len(pair.clients) == 1:
        pair.connect()
    pair.clients[1].send(MemberBeat(1.0, WORKER))
    return pair.server.receive()


def test_a_member_cannot_speak_as_another(pair: Pair) -> None:
    impostor, member = pair.connect(me=Address("run", TaskId("member", 2), 1)), pair.connect()
    impostor.send_reliable(TaskCleared(WORKER, 1))
    assert pair.until(lambda: pair.server.receive() if not pair.server.dropped else _known(pair)) is not None
    assert set(pair.server.dropped) == {"member.1 speaks as member.2"}
    assert [peer.task for peer in pair.server.peers.values()] == [MEMBER.task], "nothing is sent to it either"
    assert member.connections == 1


def test_a_client_without_keys_is_ignored(pair: Pair) -> None:
    known = pair.connect()
    with _plain_socket(pair) as plain:
        plain.send(b"hello")
        known.send_reliable(TaskCleared(WORKER, 1))
        heard = pair.until(pair.server.receive)
        assert heard is not None
        assert heard.body == TaskCleared(WORKER, 1)
        assert pair.server.receive() is None
        assert plain.poll(0) == 0, "it is told nothing"


def test_a_member_does_not_speak_to_a_server_with_another_key(pair: Pair) -> None:
    deceived = pair.connect(server_key=KeyPair.new().public)
    deceived.send_reliable(TaskCleared(WORKER, 1))
    known = pair.connect()
    known.send_reliable(TaskCleared(WORKER, 2))

    heard = pair.until(pair.server.receive)

    assert heard is not None
    assert heard.body == TaskCleared(WORKER, 2)
    assert deceived.connections == 0


def test_a_port_that_is_taken_is_named(pair: Pair) -> None:
    context = new_context()
    try:
        with pytest.raises(UserError, match=rf"port {pair.server.port}.*PROCSV_PORT"):
            TcpServer(context, pair.server.port, KeyPair.new(), {KeyPair.new().public: "member.1"}, COORDINATOR, CLOCK)
    finally:
        context.term()


def test_a_secret_does_not_show_in_logs() -> None:
    keys = KeyPair.new()

    assert keys.secret not in f"{keys} {keys!r}"


def test_only_the_coordinator_gives_orders(pair: Pair) -> None:
    assert not CoordinatorBeat.contract.may_be_sent_by(MEMBER.task)
    assert not KillTask.contract.may_be_sent_by(MEMBER.task)


def test_a_client_that_lost_a_connection_the_server_still_holds_is_reached_on_the_next_one(pair: Pair) -> None:
    with half_open(pair.server.port) as way:
        client = pair.connect(port=way.port)
        client.send_reliable(TaskCleared(WORKER, 3))
        heard = pair.until(pair.server.receive)
        assert heard is not None

        way.break_off()
        pair.server.send_reliable(heard.who, KillTask(WORKER, 3))
        way.mend()

        def reached() -> Received | None:
            pair.server.resend_due()
            pair.server.receive()  # accepts it; it says nothing
            return client.receive()

        order = pair.until(reached, limit_s=NEWS_S_MAX)
        assert order is not None
        assert order.body == KillTask(WORKER, 3)


def test_a_broadcast_reaches_every_connected_member(pair: Pair) -> None:
    clients = [pair.connect() for _ in range(3)]
    for client in clients:
        client.send_reliable(TaskCleared(WORKER, 3))
        assert pair.until(pair.server.receive) is not None

    pair.server.send_to_each(list(pair.server.peers), CoordinatorBeat())

    for client in clients:
        beat = pair.until(client.receive)
        assert beat is not None
        assert beat.body == CoordinatorBeat()
    with pytest.raises(ProcsvBug):
        pair.server.send_to_each(list(pair.server.peers), TaskCleared(WORKER, 3))
