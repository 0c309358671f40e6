"""A coordinator without a spare descriptor postpones a member's question to its checkpoint service."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from procsv.base.identity import CHECKPOINT, WATCHDOG, TaskId
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.checkpoint_messages import Restore
from procsv.ipc.messaging.curve_transport import KeyPair, TcpServer
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.member_messages import AskSnapshot
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Server, Waiter, new_context
from procsv.watchdog.machines.core.membership import Member, Membership
from procsv.watchdog.machines.memory_copy.relay import MemoryCopyRelay
from procsv.watchdog.machines.questions import Questions
from tests.support.launched import NEWS_S_MAX

CLOCK, WORKER = SystemClock(), TaskId("worker", 0)


@contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Coordinator:
    """A coordinator's port, and a checkpoint service that receives its questions."""

    def __init__(self, directory: Path, held: ExitStack) -> None:
        self.context, self._waiter = new_context(), Waiter()
        held.callback(self.context.term)
        self.start = Start(WATCHDOG, "run", 1, str(directory), str(directory), str(directory))
        self.server = TcpServer(
            self.context, 0, KeyPair.new(), {KeyPair.new().public: "member.1"}, Address("run", WATCHDOG, 1), CLOCK
        )
        held.callback(self.server.close)
        me = Address("run", CHECKPOINT, 1)
        self._service = Server(self.context, self.start.paths.service_socket(CHECKPOINT), me, CLOCK)
        held.callback(self._service.close)
        self._waiter.register(self._service)

    def asked(self, turn: Callable[[], object]) -> Message:
        """Return the service's first question while `turn` is called repeatedly."""
        deadline_s = CLOCK.monotonic() + NEWS_S_MAX
        while (received := self._service.receive()) is None:
            assert CLOCK.monotonic() < deadline_s
            turn()
            self._waiter.wait(0.02)
        assert isinstance(received.body, Message)
        return received.body


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with ExitStack() as held:
        yield Coordinator(tmp_path, held)


def test_what_a_task_should_restore_is_asked_once_there_is_a_descriptor(coordinator: Coordinator) -> None:
    questions = Questions(coordinator.context, coordinator.start, CLOCK)
    with no_descriptors():
        questions.ask(WORKER, 1, durable_only=True)
        assert questions.poll_questions() == []
    assert coordinator.asked(questions.poll_questions) == Restore(durable_only=True, fetches=True)
    questions.close()


def test_a_snapshot_for_the_copy_is_requested_once_there_is_a_descriptor(coordinator: Coordinator) -> None:
    members = Membership((WORKER,), 10.0)
    members.join(member := Member(1, WORKER, "n2", "", 7, CLOCK.monotonic()))
    copy_relay = MemoryCopyRelay(coordinator.context, coordinator.server, members, coordinator.start, CLOCK, "n1")
    copy_relay.order_keeper()
    with no_descriptors():
        assert copy_relay.told(member, AskSnapshot(3)) == []
        copy_relay.order_keeper()

    def turn() -> None:
        copy_relay.order_keeper()
        copy_relay.relay_answers()

    assert coordinator.asked(turn) == AskSnapshot(3)
    copy_relay.close()
