"""The loss of a machine answers its open orders, so that nothing waits for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from procsv.base.identity import WATCHDOG, TaskId
from procsv.ipc.messaging.curve_transport import KeyPair, TcpServer
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Waiter, new_context
from procsv.watchdog.core.events import Event, NotStarted, TreeGone
from procsv.watchdog.machines.core.membership import Member, Membership, member_lost
from procsv.watchdog.machines.remote_tasks import RemoteTasks
from tests.support.fake_clock import FakeClock

WORKER, TIMEOUT_S, LOOK_S = TaskId("worker", 0), 10.0, 0.5


class Remote:
    def __init__(self, directory: Path) -> None:
        self.clock, context = FakeClock(), new_context()
        keys, me = KeyPair.new(), Address("run", WATCHDOG, 1)
        server = TcpServer(context, 0, keys, {KeyPair.new().public: "member.1"}, me, self.clock)
        members = Membership((WORKER,), TIMEOUT_S)
        members.join(Member(1, WORKER, "n2", "", 7, self.clock.monotonic()))
        start = Start(WATCHDOG, "run", 1, str(directory), str(directory), str(directory))
        self.tasks = RemoteTasks(context, server, members, start, self.clock)

    def pass_time(self, seconds: float) -> list[Event]:
        """Return what a loop hears meanwhile that looks as often as the coordinator's."""
        heard: list[Event] = []
        for _ in range(int(seconds / LOOK_S)):
            self.clock.advance(LOOK_S)
            heard += self.tasks.poll()
        return heard

    def close(self) -> None:
        self.tasks.close(0)


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Remote]:
    with closing(Remote(tmp_path)) as made:
        yield made


def test_an_open_start_fails_before_the_loss_is_reported(remote: Remote) -> None:
    remote.tasks.start(WORKER, 3, 0.0)
    assert remote.tasks.poll() == []

    heard = remote.pass_time(TIMEOUT_S)

    assert heard == [NotStarted(WORKER, 3, "n2 is lost"), member_lost(WORKER, "n2", TIMEOUT_S)]


def test_a_task_being_cleaned_up_is_gone_after_the_loss_is_reported(remote: Remote) -> None:
    remote.tasks.clear_tree(WORKER, 2, has_ended=False)

    heard = remote.pass_time(TIMEOUT_S)

    assert heard == [member_lost(WORKER, "n2", TIMEOUT_S), TreeGone(WORKER, 2)]


def test_beats_are_gathered_for_a_moment_and_all_else_is_handled_at_once(remote: Remote) -> None:
    waiter, other = Waiter(), os.eventfd(0)
    try:
        waiter.register(other)
        remote.tasks.listen(waiter)
        assert remote.tasks.gather_beats(0.0)

        os.eventfd_write(other, 1)

        assert not remote.tasks.gather_beats(60.0)
        assert waiter.wait(0.0) == [other]
    finally:
        os.close(other)


def test_orders_after_the_loss_are_answered_at_once(remote: Remote) -> None:
    remote.pass_time(TIMEOUT_S)

    remote.tasks.start(WORKER, 4, 0.0)
    remote.tasks.clear_tree(WORKER, 4, has_ended=False)

    assert remote.tasks.poll() == [NotStarted(WORKER, 4, "n2 is lost"), TreeGone(WORKER, 4)]
    assert remote.tasks.beats() == {}
