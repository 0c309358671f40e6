"""The properties that only real sockets have: files, modes, killed processes and waiting."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from procsv.base.errors import UserError
from procsv.base.identity import CHECKPOINT, TRAINER
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.checkpoint_messages import UserSave
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.messages import MESSAGE_BYTES_MAX, Ack, Hello
from procsv.ipc.messaging.zmq_transport import CUT_OFF_BYTES, Client, Server, Waiter, new_context
from tests.ipc.messaging.networks import RUN, RealWire, Talk
from tests.support.programs import running, until

SERVER = """
    import os, sys
    from pathlib import Path
    from procsv.base.identity import CHECKPOINT
    from procsv.ipc.messaging.zmq_transport import Address, Server, Waiter, new_context
    from procsv.base.system.system_clock import SystemClock
    path, run, incarnation, acknowledges = sys.argv[1:]
    server = Server(new_context(), Path(path), Address(run, CHECKPOINT, int(incarnation)), SystemClock())
    waiter = Waiter()
    waiter.register(server)
    print("bound")
    while True:
        waiter.wait(1.0)
        while (heard := server.receive()) is not None:
            print("heard", type(heard.body).__name__, heard.seq)
            if acknowledges == "yes":
                server.acknowledge(heard)
        server.resend_due()
"""


@pytest.fixture
def path() -> Path:
    return Path(os.environ["XDG_RUNTIME_DIR"], "it.sock")


class Ends:
    """Servers and clients on one path, closed after the test."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock, self.context = path, SystemClock(), new_context()
        self._open: list[Server | Client] = []

    def server(self) -> Server:
        self._open.append(Server(self.context, self.path, Address(RUN, CHECKPOINT, 1), self.clock))
        assert isinstance(self._open[-1], Server)
        return self._open[-1]

    def client(self) -> Client:
        self._open.append(Client(self.context, self.path, Address(RUN, TRAINER, 1), self.clock))
        assert isinstance(self._open[-1], Client)
        return self._open[-1]

    def close(self) -> None:
        for end in self._open:
            end.close()
        self.context.term()


@pytest.fixture
def ends(path: Path) -> Iterator[Ends]:
    ends = Ends(path)
    yield ends
    ends.close()


@pytest.fixture
def talk(path: Path) -> Iterator[Talk]:
    wire = RealWire(path.parent)
    yield Talk(wire)
    wire.close()


def test_only_its_owner_and_root_can_use_the_socket(ends: Ends, path: Path) -> None:
    before = os.umask(0o022)
    try:
        ends.server()
        assert os.umask(0o022) == 0o022, "the process's umask is as it was"
    finally:
        os.umask(before)
    info = path.stat()
    assert stat.S_ISSOCK(info.st_mode)
    assert stat.S_IMODE(info.st_mode) == 0o600


ANOTHER_USER = 54321
STRANGER = """
    import os, sys, zmq
    from zmq.utils.monitor import recv_monitor_message
    socket = zmq.Context().socket(zmq.DEALER)
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    os.setresuid(*[int(sys.argv[2])] * 3)
    socket.connect("ipc://" + sys.argv[1])
    event = recv_monitor_message(monitor)["event"]
    print("accepted" if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else "refused")
    os._exit(0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_row_32_another_user_is_refused_whatever_the_modes_allow(ends: Ends, path: Path) -> None:
    server = ends.server()
    for place in (path, path.parent, path.parent.parent):
        place.chmod(0o777)
    with running(STRANGER, path, ANOTHER_USER) as stranger:
        stranger.wait_said("refused")
    assert server.receive() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_is_accepted_by_another_users_server(path: Path) -> None:
    for place in (path.parent, path.parent.parent):
        place.chmod(0o777)
    another_users = SERVER.replace("server = Server(", f"os.setresuid(*[{ANOTHER_USER}] * 3); server = Server(")
    with running(another_users, path, RUN, 1, "yes") as server:
        server.wait_said("bound")
        with running(STRANGER, path, os.getuid()) as root:
            root.wait_said("accepted")


@pytest.mark.parametrize("what", ["file", "directory", "link"])
def test_a_file_in_place_of_the_socket_is_an_error_and_stays(ends: Ends, path: Path, what: str) -> None:
    if what == "file":
        path.write_text("precious")
    elif what == "directory":
        path.mkdir()
    else:
        (path.parent / "precious").write_text("precious")
        path.symlink_to(path.parent / "precious")
    before = path.lstat()

    with pytest.raises(UserError, match=str(path)) as caught:
        ends.server()

    assert caught.value.exit_code == 73
    assert path.lstat() == before
    if what != "directory":
        assert path.read_text() == "precious"


def test_a_stale_socket_is_replaced(ends: Ends, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    assert ends.server().is_in_place()


def test_a_deleted_or_replaced_socket_is_noticed_and_only_our_own_is_removed(ends: Ends, path: Path) -> None:
    server = ends.server()
    assert server.is_in_place()
    path.unlink()
    assert not server.is_in_place()

    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        assert not server.is_in_place()
        server.close()
        assert path.exists()


def test_row_51_a_socket_that_is_bound_again_keeps_its_clients_and_accepts_new_ones(ends: Ends, path: Path) -> None:
    server, old = ends.server(), ends.client()
    waiter = Waiter()
    for end in (server, old):
        waiter.register(end)

    def say(client: Client, hello: int) -> None:
        client.send_reliable(Hello(hello))
        until(lambda: is_heard(Hello(hello)), lambda: wait(client))

    def is_heard(hello: Hello) -> bool:
        if (heard := server.receive()) is not None:
            server.acknowledge(heard)
        return heard is not None and heard.body == hello

    def wait(client: Client) -> None:
        waiter.wait(1.0)
        client.resend_due()

    until(old.resend_due, lambda: waiter.wait(1.0))
    say(old, 1)
    path.unlink()
    server.bind()
    assert server.is_in_place()
    say(old, 2)
    new = ends.client()
    waiter.register(new)
    until(new.resend_due, lambda: waiter.wait(1.0))
    say(new, 3)


def test_a_socket_without_a_directory_is_a_system_error_and_is_bound_once_there_is_one(ends: Ends, path: Path) -> None:
    server = ends.server()
    path.unlink()
    away = path.parent.rename(path.parent.with_name(path.parent.name + ".away"))
    with pytest.raises(FileNotFoundError):
        server.bind()
    away.rename(path.parent)
    server.bind()
    assert server.is_in_place()


def test_close_removes_the_socket(ends: Ends, path: Path) -> None:
    ends.server().close()
    assert not path.exists()


def test_a_peer_that_sends_too_much_is_disconnected_and_the_others_are_served(
    talk: Talk, path: Path, ends: Ends
) -> None:
    talk.server = talk.wire.server()
    client = talk.wire.client()
    talk.clients = [client]
    talk.until(lambda: client.connections and not len(client.peer.outbox))

    with ends.context.socket(zmq.DEALER) as hog:
        hog.setsockopt(zmq.LINGER, 0)
        events = hog.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        hog.connect(f"ipc://{path}")
        hog.send(b"x" * (MESSAGE_BYTES_MAX + 1))
        talk.until(lambda: talk.server is not None and talk.server.refused == 1)
        hog.send(b"x" * (CUT_OFF_BYTES + 1))
        talk.until(lambda: events.poll(0))
        hog.disable_monitor()
        events.close(0)
    client.send_reliable(UserSave("still here"))
    talk.until_all_said()

    assert [type(received.body) for received in talk.at_server] == [Hello, UserSave]


def test_a_message_of_almost_the_limit_arrives(talk: Talk) -> None:
    talk.server = talk.wire.server()
    client = talk.wire.client()
    talk.clients = [client]
    client.send_reliable(UserSave("x" * (MESSAGE_BYTES_MAX - 1000)))
    talk.until(lambda: talk.received(UserSave))


def test_a_peer_that_does_not_speak_zeromq_is_survived(talk: Talk, path: Path) -> None:
    talk.server = talk.wire.server()
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(str(path))
        other.sendall(b"GET / HTTP/1.1\r\n\r\n" * 50)
        client = talk.wire.client()
        talk.clients = [client]
        talk.until(lambda: client.connections and not len(client.peer.outbox))


@pytest.mark.fault
def test_messages_that_a_killed_server_left_unhandled_reach_its_successor(talk: Talk, path: Path) -> None:
    client = talk.wire.client()
    talk.clients = [client]
    with running(SERVER, path, RUN, 1, "no") as first:
        first.wait_said("bound")
        client.send_reliable(UserSave("precious"))
        talk.until(lambda: client.connections)
        talk.turn()
        first.wait_said("heard")
        first.kill()
    assert path.exists(), "a killed server leaves its socket"
    assert len(client.peer.outbox) == 2  # the note, and Hello

    with running(SERVER, path, RUN, 2, "yes") as second:
        second.wait_said("bound")
        talk.until_all_said()
        assert client.connections == 2
        assert {type(received.body) for received in talk.at_clients} == {Ack}
        assert {received.incarnation for received in talk.at_clients} == {2}


@pytest.mark.fault
def test_a_server_survives_a_client_that_is_killed_in_mid_message(talk: Talk, path: Path) -> None:
    talk.server = talk.wire.server()
    source = """
        import sys
        from pathlib import Path
        from procsv.base.identity import TRAINER
        from procsv.ipc.messaging.zmq_transport import Address, Client, Waiter, new_context
        from procsv.base.system.system_clock import SystemClock
        from procsv.ipc.messaging.checkpoint_messages import UserSave
        from procsv.ipc.messaging.messages import Hello
        client = Client(new_context(), Path(sys.argv[1]), Address(sys.argv[2], TRAINER, 1), SystemClock())
        waiter = Waiter()
        waiter.register(client)
        number = 0
        while True:
            waiter.wait(0.001)
            client.resend_due()
            while client.receive() is not None:
                print("answered")
            if number < 5000:
                number += client.send_reliable(UserSave("x" * 10_000)) > 0
    """
    with running(source, path, RUN) as trainer:
        talk.until(lambda: len(talk.received(UserSave)) > 10)
        trainer.kill()
    before = len(talk.at_server)
    client = talk.wire.client(TRAINER, 2)
    talk.clients = [client]
    talk.until(lambda: client.connections and not len(client.peer.outbox))

    assert len(talk.at_server) > before


# -- Waiter ----------------------------------------------------------------------------------------------------
def test_waiting_ends_when_a_channel_has_news(ends: Ends, path: Path) -> None:
    waiter = Waiter()
    server = ends.server()
    client = ends.client()
    waiter.register(server)
    waiter.register(client)

    assert waiter.wait(300.0) == [client]  # its connection is made
    assert client.resend_due()
    client.send_reliable(Hello(1))
    assert waiter.wait(300.0) == [server]


def test_waiting_ends_when_a_descriptor_is_readable_and_names_it(ends: Ends) -> None:
    waiter, fd = Waiter(), os.eventfd(0, os.EFD_NONBLOCK)
    waiter.register(fd)
    assert waiter.wait(0.0) == []

    timer = threading.Timer(0.05, os.eventfd_write, (fd, 1))
    timer.start()
    assert waiter.wait(300.0) == [fd]
    timer.join()
    waiter.remove(fd)
    assert waiter.wait(0.0) == []
    os.close(fd)


def test_waiting_without_news_ends_on_time_and_never_too_early() -> None:
    clock, waiter, fd = SystemClock(), Waiter(), os.eventfd(0)
    waiter.register(fd)
    before_s = clock.monotonic()
    assert waiter.wait(0.0205) == []
    assert clock.monotonic() - before_s >= 0.0205
    os.close(fd)


def test_a_client_with_more_to_send_is_not_waited_for(ends: Ends, path: Path) -> None:
    clock, waiter = SystemClock(), Waiter()
    client = ends.client()
    waiter.register(client)
    client.send_reliable(UserSave("early"))
    server = ends.server()
    until(client.resend_due, lambda: waiter.wait(1.0))

    before_s = clock.monotonic()
    waiter.wait(300.0)
    assert clock.monotonic() - before_s < 100.0
    assert client.resend_due() is False
    until(server.receive, lambda: waiter.wait(0.01))
    waiter.remove(client)
    assert waiter.wait(0.0) == []
