"""A backlog and the service's core work over a link that loses, doubles and delays, with a service
that is killed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from procsv.ipc.messaging.summary_messages import CloseWriter, OpenWriter, Records, Written
from procsv.services.summary.core import Append, SummaryCore, SummaryReply
from procsv.training.runtime.event_backlog import Batch, EventBacklog

STEP_S = 0.05
DELAY_S_MAX = 3.0  # less than LOST_S, as between any two live processes on one machine


@dataclass
class Link:
    """Messages in transit in both directions."""

    seed: random.Random
    lossy: bool = True
    now_s: float = 0.0
    _under_way: list[tuple[float, int, object]] = field(default_factory=list)
    _count: int = 0

    def put(self, message: object) -> None:
        copies = self.seed.choices((0, 1, 2), (2, 10, 1))[0] if self.lossy else 1
        for _ in range(copies):
            delay_s = self.seed.random() ** 8 * DELAY_S_MAX if self.lossy else 0.0
            self._count += 1
            heapq.heappush(self._under_way, (self.now_s + delay_s, self._count, message))

    def arrived(self) -> Iterator[object]:
        while self._under_way and self._under_way[0][0] <= self.now_s:
            yield heapq.heappop(self._under_way)[2]


@dataclass
class Service:
    """The core over a file and its note in memory. Both survive a kill."""

    seed: random.Random
    file: list[bytes] = field(default_factory=list)
    noted: int = 0
    core: SummaryCore = field(default_factory=lambda: SummaryCore(()))

    def restart(self) -> None:
        self.core = SummaryCore(())
        self.noted = len(self.file)  # whole records after the note are recovered
        if self.noted:
            self.core.recovered("1-0", self.noted)

    def hear(self, message: object) -> list[Written]:
        """Return the answers, or none if it is killed meanwhile."""
        match message:
            case OpenWriter():
                actions = self.core.open(b"", message)
            case Records():
                actions = self.core.records(b"", message)
            case CloseWriter():
                actions = self.core.close_stream(b"", message)
            case _:
                raise AssertionError(message)
        said: list[Written] = []
        for action in actions:
            if isinstance(action, Append):
                match self.seed.randrange(20):
                    case 0:
                        actions += self.core.append_failed(action, "No space left on device")
                        continue
                    case 1:  # killed with part of it written
                        self.file += [r for r in action.records if isinstance(r, bytes)][: self.seed.randrange(3)]
                        self.restart()
                        return []
                self.file += [r for r in action.records if isinstance(r, bytes)]
                self.noted = len(self.file)
                actions += self.core.appended(action)
            elif isinstance(action, SummaryReply):
                said.append(action.body)
        return said


@pytest.mark.parametrize("number", range(200))
def test_each_record_is_written_once_and_in_order(number: int) -> None:
    seed = random.Random(number)
    backlog, service, there, back = EventBacklog("1-0", "", ""), Service(seed), Link(seed), Link(seed)
    records = [f"record {n}".encode() for n in range(seed.randrange(1, 3000))]
    unsent = iter(records)
    round_number = 0
    while not backlog.is_closed:
        round_number += 1
        assert round_number < 20_000, "no end in sight"
        there.lossy = back.lossy = round_number < 2000
        there.now_s = back.now_s = round_number * STEP_S
        for _ in range(seed.randrange(100)):
            record = next(unsent, None)
            if record is None:
                backlog.end_stream()
                break
            backlog.add_record(record)
        if number % 2 and seed.random() < 0.01:
            service.restart()
            backlog.connected()  # in even runs it must notice by the silence alone
        for said in backlog.due(there.now_s):
            there.put(Records(said.writer, said.first, said.records, {}) if isinstance(said, Batch) else said)
        for message in there.arrived():
            for answer in service.hear(message):
                back.put(answer)
        for received in back.arrived():
            assert isinstance(received, Written)
            if received.writer == backlog.writer:
                backlog.on_written(received.through, received.error, back.now_s)

    assert service.file == records
    assert (backlog.dropped, backlog.unwritten) == (0, 0)
