"""Launches ask for a place that another one has, over real connections with the test's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from procsv import __version__
from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging import member_messages as told
from procsv.ipc.messaging.curve_transport import KeyPair, TcpClient, TcpServer
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.member_messages import LaunchLock
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Waiter, new_context
from procsv.watchdog.core import events
from procsv.watchdog.machines.core.membership import Membership, member_lost, member_replaced
from procsv.watchdog.machines.newcomers import as_member
from procsv.watchdog.machines.remote_tasks import RemoteTasks, member_id
from tests.support.fake_clock import FakeClock
from tests.support.launched import NEWS_S_MAX
from tests.support.naming import Naming

WORKER, REAL = TaskId("worker", 0), SystemClock()
TIMEOUT_S, LOOK_S = 10.0, 0.5
HERE = "n2:1222"


class Launch:
    """A launch that asks. It acknowledges what it receives, or not, as joining.py does until it is welcome."""

    def __init__(self, client: TcpClient) -> None:
        self.client, self.told, self.is_welcome = client, list[Message](), False

    def turn(self) -> None:
        self.client.resend_due()
        while (received := self.client.receive()) is not None:
            self.is_welcome |= isinstance(received.body, told.Welcome)
            if self.is_welcome or isinstance(received.body, told.Refused):
                self.client.acknowledge(received)
            self.told.append(received.body)

    def has(self, kind: type[Message]) -> list[Message]:
        return [body for body in self.told if isinstance(body, kind)]


class Run:
    def __init__(self, directory: Path, held: ExitStack) -> None:
        self._held, self.clock, self._context = held, FakeClock(), new_context()
        held.callback(self._context.term)
        self._keys, self._theirs = KeyPair.new(), KeyPair.new()
        server = TcpServer(
            self._context, 0, self._keys, {self._theirs.public: "member.1"}, Address("run", WATCHDOG, 1), self.clock
        )
        self._server, self.members = server, Membership((WORKER,), TIMEOUT_S)
        start = Start(WATCHDOG, "run", 1, str(directory), str(directory), str(directory), target="train.py")
        self.members.join(as_member(1, self.question("first", LaunchLock("d", 1.0)), 0.0))
        self.tasks = RemoteTasks(self._context, server, self.members, start, self.clock)
        held.callback(server.close)
        self._waiter, self._launches, self.events = Waiter(), list[Launch](), list[events.Event]()
        self._waiter.register(server)

    @staticmethod
    def question(launch: str, lock: LaunchLock | None, address: str = HERE) -> told.Join:
        return told.Join(WORKER, "n2", address, __version__, ("train.py",), 7, launch=launch, lock=lock)

    def connect(self) -> Launch:
        me = Address("run", member_id(1), 1)
        client = TcpClient(
            self._context, f"127.0.0.1:{self._server.port}", self._theirs, self._keys.public, me, self.clock
        )
        self._held.callback(client.close, linger_ms=0)
        self._waiter.register(client)
        self._launches.append(Launch(client))
        return self._launches[-1]

    def until(self, has_come: Callable[[], object]) -> None:
        deadline_s = REAL.monotonic() + NEWS_S_MAX
        while not has_come():
            assert REAL.monotonic() < deadline_s, f"{self.events}, {[launch.told for launch in self._launches]}"
            for launch in self._launches:
                launch.turn()
            self.events += self.tasks.poll()
            self.tasks.keep_in_touch(self.clock.monotonic())
            self._waiter.wait(0.02)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with ExitStack() as held:
        yield Run(tmp_path, held)


def speak(run: Run) -> Launch:
    """Let the launch that has the place be heard."""
    first = run.connect()
    first.client.send_reliable(told.TaskStarted(WORKER, 1, 77))
    run.until(lambda: run.events)
    run.events.clear()
    return first


def test_orders_of_a_dead_launch_are_not_executed_by_the_next_one_and_later_orders_are(run: Run) -> None:
    speak(run)
    second = run.connect()
    second.client.send_reliable(
        told.MirrorKept(1, 1)
    )  # it is known by its connection and gets the first one's messages
    run.until(lambda: not len(second.client.peer.outbox))
    run.tasks.start(WORKER, 2, 0.0)
    run.tasks.clear_tree(WORKER, 1, has_ended=False)

    second.client.send_reliable(run.question("second", LaunchLock("d", 2.0)))
    run.until(lambda: second.is_welcome)

    died = member_replaced(WORKER, "n2", 7, 7)
    assert run.events == [events.NotStarted(WORKER, 2, "n2 is lost"), died, events.TreeGone(WORKER, 1)]
    second.told.clear()
    run.tasks.start(WORKER, 3, 0.0)
    run.until(lambda: second.has(told.StartTask))
    assert second.has(told.StartTask) == [told.StartTask(WORKER, 3)]


def test_messages_of_a_dead_launch_come_too_late(run: Run) -> None:
    first, second = speak(run), run.connect()
    second.client.send_reliable(run.question("second", LaunchLock("d", 2.0)))
    run.until(lambda: second.is_welcome)
    run.events.clear()

    first.client.send_reliable(told.TaskStarted(WORKER, 2, 78))
    second.client.send_reliable(told.TaskStarted(WORKER, 3, 79))

    run.until(lambda: run.events)
    assert run.events == [events.Started(WORKER, 3, 79)]


def test_a_launch_without_proof_of_succession_waits_until_all_restart_with_it(run: Run) -> None:
    speak(run)
    second = run.connect()
    second.client.send_reliable(run.question("second", None))
    run.until(lambda: second.has(told.MustWait))
    assert not run.events
    assert second.has(told.MustWait) == [
        told.MustWait(Naming("n2 has worker.0 (process 7), ", " 0.0 s ago: ", " 10 s, "))
    ]

    for _ in range(int(TIMEOUT_S / LOOK_S)):
        run.clock.advance(LOOK_S)
        run.events += run.tasks.poll()

    assert run.events == [member_lost(WORKER, "n2", TIMEOUT_S, "n2")]
    run.tasks.start(WORKER, 2, 0.0)
    run.until(lambda: len(run.events) > 1)
    assert run.events[1:] == [events.NotStarted(WORKER, 2, "n2 is lost")], "it takes no orders of this run"


def test_all_tasks_restart_at_once_with_a_launch_whose_task_would_be_elsewhere(run: Run) -> None:
    speak(run)
    second = run.connect()

    second.client.send_reliable(run.question("second", LaunchLock("d", 2.0), "n2:3333"))

    run.until(lambda: run.events)
    assert run.events == [member_lost(WORKER, "n2", 0.0, "n2", is_killed=True)]


def test_a_second_launch_is_refused_once_the_first_has_been_heard_for_long_enough(run: Run) -> None:
    first = speak(run)
    second = run.connect()
    second.client.send_reliable(run.question("second", None))
    run.until(lambda: second.has(told.MustWait))

    for _ in range(3):
        run.clock.advance(TIMEOUT_S - 1)
        before = run.members.by_task[WORKER].heard_s
        first.client.send(told.MemberBeat(0.0, WORKER))
        run.until(lambda before=before: run.members.by_task[WORKER].heard_s > before)  # type: ignore[misc]

    run.until(lambda: second.has(told.Refused))
    assert second.has(told.Refused) == [told.Refused(Naming("worker.0 ", "n2 (process 7)"), 75)]
    assert not run.events


def test_a_launch_that_asks_again_on_another_connection_is_welcome_there_and_gets_its_orders(run: Run) -> None:
    speak(run)
    run.tasks.start(WORKER, 2, 0.0)
    again = run.connect()

    again.client.send_reliable(run.question("first", LaunchLock("d", 1.0)))

    run.until(lambda: again.is_welcome and again.has(told.StartTask))
    assert again.has(told.StartTask) == [told.StartTask(WORKER, 2)]
    assert not run.events
