"""Event records of a task on another machine, over a link that breaks, to a service that is killed: each is written once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from procsv.base.identity import SUMMARY, WATCHDOG, TaskId
from procsv.ipc.messaging.codec import decode_body, encode_body
from procsv.ipc.messaging.curve_transport import KeyPair, TcpClient, TcpServer
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.member_messages import RecordsWritten, TaskRecords
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.summary_messages import OpenWriter, Records, Written
from procsv.ipc.messaging.zmq_transport import Waiter, new_context
from procsv.watchdog.core.members.membership import Member, Membership
from procsv.watchdog.core.members.relayed_streams import RelayedStreams
from procsv.watchdog.edge.members.remote_tasks import RemoteTasks, member_id
from tests.summary.real_service import DEADLINE_S, Run, event, event_files, steps_in
from tests.support.half_open import half_open

WORKER, FIRST, SECOND = TaskId("worker", 0), "worker.0.1-0", "worker.0.2-0"


class Relay:
    """What a launch has taken of its task, and the coordinator's end, which hands it to the run's service."""

    def __init__(self, run: Run, held: ExitStack) -> None:
        self.run, self.streams, context = run, RelayedStreams(), new_context()
        held.callback(context.term)
        keys, theirs = KeyPair.new(), KeyPair.new()
        server = TcpServer(context, 0, keys, theirs.public, Address(run.run, WATCHDOG, 1), run.clock)
        members = Membership((WORKER,), 2 * DEADLINE_S)
        members.join(Member(1, WORKER, "n2", "", 7, run.clock.monotonic()))
        where = (str(run.logdir), str(run.paths.run_dir), str(run.paths.shm_dir))
        self.tasks = RemoteTasks(context, server, members, Start(WATCHDOG, run.run, 1, *where), run.clock)
        held.callback(server.close)
        held.callback(lambda: self.tasks._summaries.close())
        self.way = held.enter_context(half_open(server.port))
        me = Address(run.run, member_id(1), 1)
        self.client = TcpClient(context, f"127.0.0.1:{self.way.port}", theirs, keys.public, me, run.clock)
        held.callback(self.client.close, linger_ms=0)
        self._waiter, self._connections, self._taken = Waiter(), 0, dict[str, int]()
        self.tasks.listen(self._waiter)
        self._waiter.add(self.client)

    def take(self, attempt: int, name: str, count: int) -> None:
        """So many records more of that attempt; what they say follows on."""
        self.streams.began(attempt)
        first = self._taken.get(name, 0) + 1
        self._taken[name] = first + count - 1
        self.streams.heard(attempt, OpenWriter(name, str(self.run.logdir / name), ""))
        records = tuple(event(number) for number in range(first, first + count))
        assert self.streams.heard(attempt, Records(name, first, records, {})).through == self._taken[name]

    def until(self, has_come: Callable[[], object]) -> None:
        clock, deadline_s = self.run.clock, self.run.clock.monotonic() + DEADLINE_S
        while not has_come():
            assert clock.monotonic() < deadline_s, f"{self.streams.unwritten} records are not written"
            self.client.tick()
            if self.client.connections != self._connections:
                self._connections = self.client.connections
                self.streams.connected()
            for attempt, message in self.streams.due(clock.monotonic()):
                self.client.send(TaskRecords(WORKER, attempt, encode_body(message)))
            self.tasks.hear()
            while (received := self.client.receive()) is not None:
                if isinstance(received.body, RecordsWritten):
                    written = decode_body(received.body.body)
                    assert isinstance(written, Written)
                    self.streams.on_written(written, clock.monotonic())
            self._waiter.wait(0.05)

    def has_fewer_than(self, unwritten: int) -> bool:
        return self.streams.unwritten < max(1, unwritten)

    def steps(self, name: str) -> list[int]:
        return steps_in(*event_files(self.run.logdir / name))


@pytest.fixture
def relay(run: Run) -> Iterator[Relay]:
    run.start()
    with ExitStack() as held:
        yield Relay(run, held)


def test_a_link_that_breaks_with_records_under_way_loses_and_doubles_none(relay: Relay) -> None:
    relay.take(1, FIRST, 1000)
    relay.until(lambda: relay.streams.unwritten < 1000)
    relay.take(1, FIRST, 2000)

    for _ in range(3):
        left = relay.streams.unwritten
        relay.way.break_off()
        relay.take(1, FIRST, 100)
        relay.way.mend()
        relay.until(partial(relay.has_fewer_than, left))
    relay.take(2, SECOND, 50)  # the task is started again before all of the first attempt is written
    relay.until(lambda: not relay.streams.unwritten)

    assert relay.steps(FIRST) == list(range(1, 3301))
    assert relay.steps(SECOND) == list(range(1, 51))


def test_a_service_that_is_killed_with_records_under_way_costs_and_doubles_none(relay: Relay, run: Run) -> None:
    relay.take(1, FIRST, 3000)
    relay.until(lambda: relay.streams.unwritten < 3000)

    run.kill()
    run.start()
    relay.take(1, FIRST, 100)
    relay.until(lambda: not relay.streams.unwritten)

    assert relay.steps(FIRST) == list(range(1, 3101))
    assert run.paths.service_socket(SUMMARY).exists()
