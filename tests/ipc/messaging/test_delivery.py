"""Each incarnation of a receiver handles each reliable message once, whatever the network loses,
doubles or reorders.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from procsv.base.identity import TRAINER
from procsv.ipc.messaging import endpoint
from procsv.ipc.messaging.checkpoint_messages import Rejected, UserSave
from procsv.ipc.messaging.delivery import RESEND_S, RESENT_MAX, UNACKED_MAX, Inbox, Outbox
from procsv.ipc.messaging.endpoint import ServerEndpoint
from procsv.ipc.messaging.messages import Hello
from procsv.ipc.messaging.watchdog_messages import Finish
from tests.ipc.messaging.networks import FakeWire, Talk
from tests.support.memory_transport import FakeClient


# -- sender ----------------------------------------------------------------------------------------------------
def test_a_message_is_resent_each_second_until_it_is_acknowledged() -> None:
    outbox = Outbox()
    seq = outbox.add_message(Finish(), 0, 10.0)

    assert outbox.next_due_s() == 10.0 + RESEND_S
    assert outbox.due(10.9) == []
    assert outbox.due(11.0) == [(seq, 0, Finish())]
    assert outbox.due(11.5) == []
    assert outbox.due(12.0) == [(seq, 0, Finish())]
    assert outbox.acknowledge(seq) == Finish()
    assert (outbox.due(99.0), outbox.next_due_s(), len(outbox)) == ([], None, 0)


def test_a_repeated_or_unknown_acknowledgement_is_ignored() -> None:
    outbox = Outbox()
    seq = outbox.add_message(Finish(), 0, 0.0)

    assert outbox.acknowledge(seq + 1) is None
    assert outbox.acknowledge(seq) == Finish()
    assert outbox.acknowledge(seq) is None


def test_after_a_reconnection_everything_is_resent_in_order() -> None:
    outbox = Outbox()
    seqs = [outbox.add_message(Hello(number), number, 5.0) for number in range(3)]
    outbox.resend_all()

    assert [(seq, n, Hello(n)) for n, seq in enumerate(seqs)] == outbox.due(5.0)
    assert outbox.due(5.0) == []


@given(st.floats(0, 1e9), st.integers(1, 50))
def test_resending_is_due_at_the_announced_time(start_s: float, times: int) -> None:
    """A loop that sleeps until `next_due_s` must have work to do then, or it spins."""
    outbox = Outbox()
    outbox.add_message(Finish(), 0, start_s)
    for _ in range(times):
        due_s = outbox.next_due_s()
        assert due_s is not None
        assert outbox.due(due_s)


def test_an_acknowledgement_of_an_older_incarnations_message_does_not_count() -> None:
    before, now = Outbox(1), Outbox(2)
    late = before.add_message(Finish(), 0, 0.0)
    now.add_message(Finish(), 0, 0.0)
    assert now.acknowledge(late) is None
    assert len(now) == 1


def test_sequence_numbers_are_never_used_again() -> None:
    outbox = Outbox()
    first = outbox.add_message(Finish(), 0, 0.0)
    outbox.drop_messages()

    assert len(outbox) == 0
    assert outbox.add_message(Finish(), 0, 0.0) > first


def test_row_47_a_peer_that_acknowledges_nothing_for_days_loses_the_oldest_messages() -> None:
    outbox = Outbox()
    for number in range(UNACKED_MAX + 3):
        outbox.add_message(Finish(), number, 0.0)
    assert (len(outbox), outbox.dropped) == (UNACKED_MAX, 3)
    assert outbox.find_message(3) is None
    assert outbox.find_message(4) == Finish()


def test_row_47_a_peer_that_is_far_behind_gets_the_oldest_messages_until_it_acknowledges_them() -> None:
    outbox = Outbox()
    for _ in range(3 * RESENT_MAX):
        outbox.add_message(Finish(), 0, 0.0)
    got: list[int] = []
    for second in (1.0, 2.0, 3.0):
        assert outbox.next_due_s() == (second if second == 1.0 else RESEND_S)
        for seq, _, _ in outbox.due(second):
            outbox.acknowledge(seq)
            got.append(seq)
    assert got == list(range(1, 3 * RESENT_MAX + 1))


# -- receiver --------------------------------------------------------------------------------------------------
def test_a_message_is_new_once() -> None:
    inbox = Inbox()
    assert inbox.is_news(1, 1)
    assert not inbox.is_news(1, 1)


def test_unreliable_messages_are_always_new_unless_they_are_of_an_older_incarnation() -> None:
    inbox = Inbox()
    assert [inbox.is_news(2, 0), inbox.is_news(2, 0), inbox.is_news(1, 0), inbox.is_news(1, 5)] == [
        True,
        True,
        False,
        False,
    ]


def test_a_new_incarnation_starts_from_nothing() -> None:
    inbox = Inbox()
    assert inbox.is_news(1, 1)
    assert inbox.is_news(2, 1)
    assert not inbox.is_news(1, 2)


def test_a_repeated_message_may_be_acknowledged_only_after_it_has_taken_effect() -> None:
    inbox = Inbox()
    inbox.is_news(1, 1)
    assert not inbox.is_settled(1, 1)
    inbox.mark_answered(1)
    assert inbox.is_settled(1, 1)
    assert not inbox.is_settled(2, 1)


@given(st.lists(st.integers(1, 30)))
@example([1, 3, 2])
@example([2, 1, 3, 3])
def test_the_inbox_knows_exactly_which_messages_it_has_seen(seqs: list[int]) -> None:
    inbox, seen = Inbox(), set[int]()
    for seq in seqs:
        assert inbox.is_news(1, seq) == (seq not in seen)
        seen.add(seq)


def test_a_week_of_messages_after_a_service_restart_costs_no_memory() -> None:
    inbox = Inbox()
    for seq in range(100_000, 200_000):  # the previous service has received the others
        assert inbox.is_news(1, seq)
        inbox.mark_answered(seq)

    assert inbox.seen == [[100_000, 199_999]]
    assert not inbox.unsettled


# -- two clients of one task -------------------------------------------------------------------------------------
class Rivals:
    """A server and two clients of one task. The first sent "first" and was cut off unanswered; the
    second has since spoken.
    """

    def __init__(self) -> None:
        self.wire = FakeWire()
        self.talk = Talk(self.wire)
        self.server = self.talk.server = self.wire.server()
        self.first = self._come()
        self.first.send_reliable(UserSave("first"))
        self.wire.network.loss = 1.0  # the acknowledgement is lost
        self.talk.until(lambda: "first" in self.heard())
        self.wire.network.take_away(self.first)
        self.wire.network.loss = 0.0
        self.second = self._come()
        self.server.broadcast(Rejected("told", ""), TRAINER)
        self.talk.until(lambda: len(self.server.peers) == 1)

    def _come(self) -> FakeClient:
        client = self.wire.client()
        self.talk.clients.append(client)
        self.talk.until(lambda: client.connections and not len(client.peer.outbox))
        return client

    def heard(self) -> list[str]:
        return [one.body.path for one in self.talk.at_server if isinstance(one.body, UserSave)]

    def told(self) -> list[str]:
        return [one.body.path for one in self.talk.at_clients if isinstance(one.body, Rejected)]


def test_a_peer_that_returns_after_another_of_its_task_has_spoken_repeats_nothing_and_hears_everything() -> None:
    rivals = Rivals()
    rivals.talk.at_clients.clear()
    rivals.wire.network.bring_back(rivals.first)
    rivals.talk.until(lambda: not len(rivals.first.peer.outbox))
    rivals.talk.until(lambda: not rivals.server.unacknowledged(TRAINER))

    assert rivals.heard() == ["first"]
    assert rivals.told() == ["told"]  # as soon as it is back
    assert len(rivals.server.peers) == 2


def test_a_peer_that_returns_after_its_successor_is_ignored() -> None:
    rivals = Rivals()
    (second,) = rivals.server.peers
    rivals.server.forget_others(second)
    rivals.first.send_reliable(UserSave("late"))
    rivals.wire.network.bring_back(rivals.first)
    rivals.talk.until(lambda: sum(n for why, n in rivals.server.dropped.items() if "dead" in why) >= 3)

    assert rivals.heard() == ["first"]
    assert list(rivals.server.peers) == [second]


def test_only_the_newest_connections_of_dead_processes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "DEAD_MAX", 2)
    rivals = Rivals()
    for _ in range(4):
        rivals._come()
        rivals.server.forget_others([*rivals.server.peers][-1])
        rivals.server.forget_others([*rivals.server.peers][-1])
    assert len(rivals.server._dead) == 2


# -- sender and receiver over a bad network --------------------------------------------------------------------
class BadNetwork(RuleBasedStateMachine):
    """One server and one client that can be killed and restarted at any time, with every network
    error in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wire = FakeWire(seed=7)
        self.talk = Talk(self.wire)
        self.talk.server = self.wire.server()
        self.numbers = itertools.count()
        self.trainers = 0
        self.told: set[str] = set()  # sent by the living client
        self.news: set[str] = set()  # sent by the living server to the living client
        self.handled: Counter[tuple[str, int, str]] = Counter()  # by sender, incarnation and message
        self.newest_heard = 0  # received by the living server
        self.new_trainer()

    @property
    def server(self) -> ServerEndpoint:
        assert self.talk.server is not None
        return self.talk.server

    def turn(self) -> None:
        self.talk.turn()
        for received in self.talk.at_server:
            assert received.incarnation >= self.newest_heard, "an older incarnation took effect"
            self.newest_heard = received.incarnation
            if isinstance(received.body, UserSave):
                self.handled["server", self.server.me.incarnation, received.body.path] += 1
        for received in self.talk.at_clients:
            if isinstance(received.body, Rejected):
                self.handled["client", self.trainers, received.body.path] += 1
        self.talk.at_server.clear()
        self.talk.at_clients.clear()

    @rule()
    def new_trainer(self) -> None:
        """Kill the trainer with its unsent messages and start its next incarnation."""
        for client in self.talk.clients:
            self.wire.drop_client(client)
        self.told.clear()
        self.news.clear()
        self.trainers += 1
        self.talk.clients = [self.wire.client(TRAINER, self.trainers)]

    @rule()
    def new_server(self) -> None:
        self.news.clear()
        self.newest_heard = 0
        self.talk.restart()

    @rule()
    def cut(self) -> None:
        client = self.talk.clients[0]
        assert isinstance(client, FakeClient)
        self.wire.network.cut(client)

    @rule()
    def client_tells(self) -> None:
        text = f"c{next(self.numbers)}"
        self.told.add(text)
        self.talk.clients[0].send_reliable(UserSave(text))

    @rule()
    def server_tells(self) -> None:
        text = f"s{next(self.numbers)}"
        if any(peer.incarnation == self.trainers for peer in self.server.peers.values()):
            self.news.add(text)
        self.server.broadcast(Rejected(text, ""), TRAINER)

    @rule(loss=st.floats(0, 0.9), duplication=st.floats(0, 1), delay_s=st.floats(0, 5))
    def weather(self, loss: float, duplication: float, delay_s: float) -> None:
        network = self.wire.network
        network.loss, network.duplication, network.delay_s_max = loss, duplication, delay_s

    @rule(turns=st.integers(1, 40))
    def time_goes_by(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()

    @invariant()
    def nothing_is_handled_twice_in_one_life_of_its_receiver(self) -> None:
        assert not [what for what, times in self.handled.items() if times > 1]

    def teardown(self) -> None:
        """Once the network lets some messages through, every message that is still relevant is handled."""
        self.weather(0.3, 0.3, 2.0)
        for _ in range(5000):
            if not len(self.talk.clients[0].peer.outbox) and not self.server.unacknowledged(TRAINER):
                break
            self.turn()
        handled = {text for _, _, text in self.handled}
        assert self.told <= handled
        assert self.news <= {text for who, life, text in self.handled if (who, life) == ("client", self.trainers)}
        self.nothing_is_handled_twice_in_one_life_of_its_receiver()


TestBadNetwork = BadNetwork.TestCase
TestBadNetwork.settings = settings(max_examples=150, stateful_step_count=40)
