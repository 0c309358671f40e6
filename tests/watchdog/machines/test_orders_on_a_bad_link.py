"""Orders given while a member's connection is broken arrive later, each once and in order."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.outcome import Exit
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging import member_messages as told
from procsv.ipc.messaging.curve_transport import KeyPair, TcpClient, TcpServer
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.messages import Ack
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Waiter, new_context
from procsv.watchdog.core import events
from procsv.watchdog.machines.core.membership import Member, Membership
from procsv.watchdog.machines.remote_tasks import RemoteTasks, member_id
from tests.support.half_open import half_open
from tests.support.launched import NEWS_S_MAX

WORKER, CLOCK, TIMEOUT_S = TaskId("worker", 0), SystemClock(), 600.0


class Link:
    """A coordinator's table of tasks, and the client of the member that hosts one of them."""

    def __init__(self, directory: Path, held: ExitStack) -> None:
        keys, theirs, context = KeyPair.new(), KeyPair.new(), new_context()
        held.callback(context.term)
        self._server = server = TcpServer(
            context, 0, keys, {theirs.public: "member.1"}, Address("run", WATCHDOG, 1), CLOCK
        )
        members = Membership((WORKER,), TIMEOUT_S)
        members.join(Member(1, WORKER, "n2", "", 7, CLOCK.monotonic()))
        start = Start(WATCHDOG, "run", 1, str(directory), str(directory), str(directory))
        self.members = members
        self.tasks = RemoteTasks(context, server, members, start, CLOCK)
        held.callback(server.close)
        self.way = held.enter_context(half_open(server.port))
        me = Address("run", member_id(1), 1)
        self.client = TcpClient(context, f"127.0.0.1:{self.way.port}", theirs, keys.public, me, CLOCK)
        held.callback(self.client.close, linger_ms=0)
        self._waiter, self.orders, self.events = Waiter(), list[Message](), list[events.Event]()
        self._waiter.register(server)
        self._waiter.register(self.client)

    def until(self, has_come: Callable[[], object], resends: bool = True) -> None:
        """Turn both ends. `resends`: the coordinator resends what is due."""
        deadline_s = CLOCK.monotonic() + NEWS_S_MAX
        while not has_come():
            assert CLOCK.monotonic() < deadline_s, f"heard {self.orders}"
            self.client.resend_due()
            self.client.send(told.MemberBeat(CLOCK.monotonic(), WORKER))
            self.events += self.tasks.poll()
            if resends:
                self.tasks.keep_in_touch(CLOCK.monotonic())
            while (received := self.client.receive()) is not None:
                if not isinstance(received.body, Ack | told.CoordinatorBeat):
                    self.orders.append(received.body)
                self.client.acknowledge(received)
            self._waiter.wait(0.02)

    def is_all_acknowledged(self) -> bool:
        return not self._server.unacknowledged(member_id(1))

    def connect(self) -> None:
        """Wait until the coordinator has heard the member on its newest connection."""
        self.way.mend()
        made, member = self.client.connections, self.members.by_task[WORKER]
        self.until(lambda: self.client.connections > made, resends=False)
        member.clock.ahead_s = None
        self.until(lambda: member.clock.ahead_s is not None, resends=False)


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    with ExitStack() as held:
        made = Link(tmp_path, held)
        made.connect()
        yield made


def test_an_order_given_before_the_coordinator_notices_the_broken_connection_arrives(link: Link) -> None:
    link.way.break_off()

    link.tasks.start(WORKER, 2, 0.0)
    link.tasks.signal(WORKER, 2, signal.SIGTERM)
    link.way.mend()

    link.until(lambda: len(link.orders) >= 2)
    assert link.orders == [told.StartTask(WORKER, 2), told.SignalTask(WORKER, 2, signal.SIGTERM)]


def test_an_order_on_the_new_connection_does_not_overtake_one_lost_with_the_old(link: Link) -> None:
    link.way.break_off()
    link.tasks.start(WORKER, 2, 0.0)
    link.connect()

    link.tasks.signal(WORKER, 2, signal.SIGTERM)

    link.until(lambda: len(link.orders) >= 2)
    assert link.orders == [told.StartTask(WORKER, 2), told.SignalTask(WORKER, 2, signal.SIGTERM)]


def test_an_attempts_orders_are_withdrawn_once_its_end_is_known(link: Link) -> None:
    link.tasks.start(WORKER, 2, 0.0)
    link.until(lambda: link.orders and link.is_all_acknowledged())
    link.way.break_off()
    link.tasks.signal(WORKER, 2, signal.SIGTERM)
    link.tasks.kill_tree(WORKER, 2)
    link.way.mend()
    link.client.send_reliable(told.TaskEnded(WORKER, 2, Exit(None, signal.SIGKILL), None, None, "", "", 0.0))
    link.until(lambda: link.events, resends=False)

    link.tasks.clear_tree(WORKER, 2, has_ended=False)
    link.tasks.start(WORKER, 3, 0.0)

    link.until(lambda: len(link.orders) >= 3)
    assert link.orders == [told.StartTask(WORKER, 2), told.ClearTask(WORKER, 2), told.StartTask(WORKER, 3)]
