"""Server and client keep the same contract over unix sockets and over the network in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from procsv.base.errors import ProcsvBug
from procsv.base.identity import COMMAND_LINE, TRAINER, WATCHDOG, TaskId
from procsv.ipc.messaging.checkpoint_messages import Rejected, Restore, RestoreFrom, Snapshot, UserSave
from procsv.ipc.messaging.endpoint import DROPPED_REASONS_MAX, ClientEndpoint, ServerEndpoint
from procsv.ipc.messaging.messages import MESSAGE_BYTES_MAX, PROTOCOL, Ack, Body, Envelope, Hello, encode
from procsv.ipc.messaging.watchdog_messages import Status, StatusRequest, StopRun
from tests.ipc.messaging.networks import RUN, FakeWire, RealWire, Talk, Wire
from tests.support.naming import Naming


@pytest.fixture(params=["sockets", "memory"])
def talk(request: pytest.FixtureRequest) -> Iterator[Talk]:
    with tempfile.TemporaryDirectory(dir=os.environ["XDG_RUNTIME_DIR"]) as base:
        wire: Wire = RealWire(Path(base)) if request.param == "sockets" else FakeWire()
        yield Talk(wire)
        wire.close()


def meet(talk: Talk, task: TaskId = TRAINER, incarnation: int = 1) -> tuple[ServerEndpoint, ClientEndpoint]:
    """Return a server (the present one, if any) and a client whose Hello it has acknowledged."""
    if talk.server is None:
        talk.server = talk.wire.server()
    client = talk.wire.client(task, incarnation)
    talk.clients.append(client)
    talk.until(lambda: client.connections and not len(client.peer.outbox))
    return talk.server, client


def note(number: int) -> UserSave:
    return UserSave(f"note {number}")


def notes(talk: Talk) -> list[str]:
    return [received.body.path for received in talk.at_server if isinstance(received.body, UserSave)]


def test_a_message_sent_before_the_server_exists_is_delivered_once_it_does(talk: Talk) -> None:
    client = talk.wire.client()
    talk.clients = [client]
    client.send_reliable(note(1))
    talk.turn()
    assert talk.at_server == []

    talk.server = talk.wire.server()
    talk.until(lambda: client.connections and not len(client.peer.outbox))

    assert notes(talk) == ["note 1"]


def test_a_client_that_connects_after_the_server_can_talk_to_it(talk: Talk) -> None:
    _, client = meet(talk)
    client.send_reliable(note(1))
    talk.until_all_said()

    assert notes(talk) == ["note 1"]


def test_a_message_to_nobody_is_lost_and_the_sender_learns_so(talk: Talk) -> None:
    client = talk.wire.client()
    talk.clients = [client]
    assert client.send(Ack(), re=1) is False

    _, other = meet(talk)
    assert other.send(Ack(), re=2) is True
    talk.until(lambda: talk.received(Ack))
    assert [received.re for received in talk.received(Ack)] == [2]


def test_every_new_connection_starts_with_an_introduction(talk: Talk) -> None:
    client = talk.wire.client()
    talk.clients = [client]
    client.send_reliable(note(1))
    talk.server = talk.wire.server()
    talk.until(lambda: notes(talk))
    assert isinstance(talk.at_server[0].body, Hello)

    talk.acknowledges = False
    client.send_reliable(note(2))
    talk.restart()
    talk.at_server.clear()
    talk.until(lambda: "note 2" in notes(talk))
    assert isinstance(talk.at_server[0].body, Hello)


def test_messages_that_a_killed_server_had_not_acknowledged_reach_the_next_one(talk: Talk) -> None:
    _, client = meet(talk)
    talk.acknowledges = False
    client.send_reliable(note(1))
    talk.until(lambda: notes(talk))
    assert len(client.peer.outbox) == 1

    talk.restart()
    talk.acknowledges = True
    talk.until_all_said()

    assert notes(talk) == ["note 1", "note 1"]  # once by each incarnation
    assert client.connections == 2


def test_acknowledged_messages_are_not_sent_to_the_next_server(talk: Talk) -> None:
    _, client = meet(talk)
    client.send_reliable(note(1))
    talk.until_all_said()
    talk.restart()
    client.send_reliable(note(2))
    talk.until_all_said()

    assert notes(talk) == ["note 1", "note 2"]


def test_a_message_that_took_no_effect_is_not_acknowledged_however_often_it_is_sent(talk: Talk) -> None:
    server, client = meet(talk)
    talk.acknowledges = False
    client.send_reliable(note(1))
    talk.until(lambda: server.dropped["seen before"] >= 1)  # resent after RESEND_S

    assert len(client.peer.outbox) == 1
    assert notes(talk) == ["note 1"]

    server.acknowledge(next(received for received in talk.at_server if isinstance(received.body, UserSave)))
    talk.until_all_said()


def test_a_lost_acknowledgement_is_repeated_and_the_message_is_handled_once(talk: Talk) -> None:
    server, client = meet(talk)
    client.send_reliable(note(1))
    talk.until_all_said()
    seq = next(received.seq for received in talk.at_server if isinstance(received.body, UserSave))
    talk.at_clients.clear()
    talk.wire.raw(client, [envelope(note(1), seq=seq)])  # as if the first acknowledgement had been lost
    talk.until(lambda: talk.answers(Ack))

    assert notes(talk) == ["note 1"]
    assert server.dropped["seen before"] == 1


def test_an_answer_names_its_question_and_acknowledges_it(talk: Talk) -> None:
    server, client = meet(talk)
    talk.acknowledges = False
    state = RestoreFrom("fresh", "", -1, 0, (), "")
    seq = client.send_reliable(Restore(False))
    talk.until(lambda: talk.received(Restore))
    question = talk.received(Restore)[0]
    server.send_reliable(question.who, state, re=question.seq)
    talk.until(lambda: talk.answers(RestoreFrom))

    answer = talk.answers(RestoreFrom)[0]
    assert (answer.re, answer.answers, answer.body) == (seq, Restore(False), state)
    assert not len(client.peer.outbox)
    client.acknowledge(answer)
    talk.until(lambda: not server.unacknowledged(TRAINER))


def test_a_broadcast_reaches_every_peer_of_the_newest_incarnation_of_the_named_roles(talk: Talk) -> None:
    server, old = meet(talk, TRAINER, 1)
    meet(talk, TRAINER, 2)
    meet(talk, WATCHDOG, 1)
    server.broadcast(Rejected("/l/model.ckpt-1", "torn"))
    talk.until(lambda: len(talk.answers(Rejected)) == 2 and not server.unacknowledged(WATCHDOG))
    talk.turn()

    assert len(talk.answers(Rejected)) == 2
    assert old.dropped.total() == 0


def test_messages_of_an_older_incarnation_are_ignored(talk: Talk) -> None:
    server, old = meet(talk, TRAINER, 1)
    meet(talk, TRAINER, 2)
    old.send_reliable(note(1))
    talk.until(lambda: server.dropped["an older incarnation"])

    assert notes(talk) == []


def test_a_message_of_another_run_is_dropped_and_counted(talk: Talk) -> None:
    server, client = meet(talk)
    talk.wire.raw(client, [envelope(note(1), seq=9, run="another")])
    talk.until(lambda: server.dropped["another run"])

    assert notes(talk) == []


def test_the_command_line_belongs_to_no_run_and_gets_an_answer(talk: Talk) -> None:
    talk.server = talk.wire.server(task=WATCHDOG)
    talk.greets = False  # a command asks one thing and leaves
    command = talk.wire.client(COMMAND_LINE, run="")
    talk.clients = [command]
    seq = command.send_reliable(StatusRequest())
    talk.until(lambda: talk.received(StatusRequest))
    talk.server.send(talk.received(StatusRequest)[0].who, Status(b"{}"), re=seq)
    talk.until(lambda: talk.answers(Status))


def test_a_message_for_another_role_is_refused_counted_and_not_resent(talk: Talk, refuses: None) -> None:
    server, client = meet(talk)
    talk.wire.raw(client, [envelope(StopRun(now=True), seq=9)])
    talk.wire.raw(client, [envelope(Rejected("p", "w"), seq=10)])
    talk.until(lambda: server.refused == 2)

    assert set(server.dropped) == {"StopRun from trainer", "Rejected from trainer"}
    assert [received.body for received in talk.at_server] == [Hello(os.getpid())]
    talk.until(lambda: {9, 10} <= {received.re for received in talk.answers(Ack)})


def test_an_answer_of_the_wrong_kind_is_refused_and_counted(talk: Talk, refuses: None) -> None:
    server, client = meet(talk)
    talk.acknowledges = False
    client.send_reliable(note(1))
    talk.until(lambda: talk.received(UserSave))
    asked = talk.received(UserSave)[0]
    server.send_reliable(asked.who, RestoreFrom("fresh", "", -1, 0, (), ""), re=asked.seq)
    talk.until(lambda: client.refused)

    assert set(client.dropped) == {"RestoreFrom in answer to UserSave"}
    assert not talk.answers(RestoreFrom)


def test_a_message_that_breaks_its_contract_fails_the_test_that_causes_it(talk: Talk) -> None:
    _, client = meet(talk)
    talk.wire.raw(client, [envelope(StopRun(now=True), seq=9)])
    with pytest.raises(ProcsvBug, match="StopRun from trainer"):
        talk.until(lambda: False)


def test_a_message_that_a_role_may_not_send_is_our_bug_and_is_not_sent(talk: Talk) -> None:
    server, client = meet(talk)
    who = next(iter(server.peers))
    with pytest.raises(ProcsvBug, match="trainer sends Rejected"):
        client.send_reliable(Rejected("p", "w"))
    with pytest.raises(ProcsvBug, match="checkpoint sends Snapshot to trainer"):
        server.send_reliable(who, Snapshot(1, 1, ""))
    with pytest.raises(ProcsvBug, match="Ack is not a reliable message"):
        client.send_reliable(Ack())
    with pytest.raises(ProcsvBug, match="UserSave is a reliable message"):
        client.send(note(1))


@pytest.mark.parametrize(
    "frames",
    [[b""], [b"garbage"], [b"\xc1" * 100], [b"one", b"two"], [b"", b""], [b"\x97" + b"\xff" * 6], [b"\x80\x04N."]],
)
def test_garbage_is_counted_and_survived(talk: Talk, frames: list[bytes]) -> None:
    server, client = meet(talk)
    talk.wire.raw(client, frames)
    talk.until(lambda: server.dropped.total())
    client.send_reliable(note(1))
    talk.until_all_said()

    assert notes(talk) == ["note 1"]


def test_another_protocol_version_is_refused_with_both_numbers(talk: Talk) -> None:
    server, client = meet(talk)
    talk.wire.raw(client, [envelope(note(1), protocol=PROTOCOL + 1)])
    talk.until(lambda: server.dropped.total())

    assert list(server.dropped) == [Naming(f"protocol {PROTOCOL + 1}; ", f"protocol {PROTOCOL}")]


def test_the_counters_stay_few_however_many_errors_are_possible(talk: Talk) -> None:
    server, client = meet(talk)
    for protocol in range(100, 200):
        talk.wire.raw(client, [envelope(note(1), protocol=protocol)])
    talk.until(lambda: server.dropped.total() == 100)

    assert len(server.dropped) == DROPPED_REASONS_MAX + 1


def test_a_message_over_the_limit_is_our_bug_and_is_not_sent(talk: Talk) -> None:
    _, client = meet(talk)
    with pytest.raises(ProcsvBug):
        client.send_reliable(UserSave("x" * MESSAGE_BYTES_MAX))


def test_a_peer_is_forgotten_when_its_role_speaks_on_a_later_connection(talk: Talk) -> None:
    server, first = meet(talk)
    talk.clients.clear()
    talk.wire.drop_client(first)
    meet(talk)
    server.broadcast(Rejected("p", "w"), TRAINER)
    talk.until(lambda: len(server.peers) == 1)
    talk.until(lambda: not server.unacknowledged(TRAINER))


def test_the_only_peer_of_its_role_is_kept_even_if_it_cannot_be_reached(talk: Talk) -> None:
    server, client = meet(talk)
    talk.clients.clear()
    talk.wire.drop_client(client)
    server.broadcast(Rejected("p", "w"), TRAINER)
    for _ in range(5):
        talk.turn()

    assert server.unacknowledged(TRAINER) == 1


def test_a_forgotten_peer_gets_no_more_messages(talk: Talk) -> None:
    server, client = meet(talk)
    talk.acknowledges = False
    server.broadcast(Rejected("p", "w"), TRAINER)
    server.forget(TRAINER, client.me.incarnation)
    server.broadcast(Rejected("p", "w"), TRAINER)

    assert (server.peers, server.unacknowledged(TRAINER)) == ({}, 0)


def envelope(body: Body, seq: int = 1, run: str = RUN, protocol: int = PROTOCOL) -> bytes:
    return encode(Envelope(protocol, run, TRAINER, 1, seq, 0, body))
