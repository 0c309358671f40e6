"""Holder of the tasks on other machines: the end of the chief that captures.

Made by the chief's bootstrap, in a run on several machines.  It speaks to each task itself, past the watchdogs (held_task.py), and learns
from its own watchdog where each is; what it says when is holding.py's.  Killed anywhere, frozen, or cut off: each task goes on by itself,
at its own limit.

`hold` is called by one thread at a time, that which captures; `told` by the link's.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from procsv.base.clock import Clock
from procsv.base.errors import PeerError
from procsv.base.identity import TaskId
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.messaging.bulk_transport import BulkClient
from procsv.ipc.messaging.curve_transport import KeyPair
from procsv.ipc.messaging.hold_messages import HoldOffer, HoldTold
from procsv.ipc.messaging.zmq_transport import new_context
from procsv.training.holds import frames
from procsv.training.holds.holding import Holding, Orders
from procsv.training.holds.limits import SILENT_ORDERS_MAX
from procsv.training.runtime.step_hold import Hold

FRAME_BYTES_MAX = 1024
WAIT_S_MIN = 0.001  # ZeroMQ waits for whole milliseconds

declare("trainer.held")


class FarHolder:
    def __init__(self, hosts: Mapping[TaskId, str], clock: Clock, ask: Callable[[], None], *, is_first: bool) -> None:
        """`hosts`: the machines of the others that train.  `ask`: has them told.  `is_first`: no chief was there before this one."""
        self._hosts, self._clock, self._ask, self._context = dict(hosts), clock, ask, new_context()
        self._holding = Holding(self._hosts, uuid.uuid4().hex, clock.monotonic(), is_first=is_first)
        self._clients: dict[TaskId, BulkClient] = {}  # of those that have not ended
        self._news = deque[HoldTold]()  # since the last capture, by the link's thread
        ask()

    def told(self, news: HoldTold) -> None:
        """Any thread."""
        self._news.append(news)

    def close(self) -> None:
        for client in self._clients.values():
            client.close(linger_ms=0)
        self._clients.clear()
        self._context.term()

    @contextlib.contextmanager
    def hold(self, gather_s: float) -> Iterator[Hold]:
        """Keeps the other tasks between two steps for the block, as far as that can be had within `gather_s`; the block runs in any case."""
        holding, clock = self._holding, self._clock
        self._take_news()
        self._hear_all()  # an answer that came too late is one
        self._send(holding.begin(gather_s, clock.monotonic()))
        if holding.wants_news:
            self._ask()
        self._hear_while_worth_it()
        self._send(holding.gathered(clock.monotonic()))
        try:
            if not holding.hold.why:
                failpoint("trainer.held")  # killed here: all stand, and go on at their limit
            yield holding.hold
        finally:
            self._send(holding.captured(clock.monotonic()))
        self._hear_while_worth_it()
        holding.end()

    # -- where tasks are held ------------------------------------------------------------------------------
    def _take_news(self) -> None:
        while self._news:
            news = self._news.popleft()
            if not self._holding.told(news, self._clock.monotonic()):
                continue
            if (client := self._clients.pop(news.task, None)) is not None:
                client.close(linger_ms=0)
            if news.offer is not None:
                self._connect(news.task, news.offer)

    def _connect(self, task: TaskId, offer: HoldOffer) -> None:
        keys = KeyPair(offer.client_public, offer.client_secret)
        where = f"{self._hosts[task]}:{offer.port}"
        try:
            client = BulkClient(where, keys, offer.server_key, FRAME_BYTES_MAX, SILENT_ORDERS_MAX, self._context)
        except PeerError:
            self._holding.cannot_be_reached(task)
        else:
            self._clients[task] = client

    # -- what is said --------------------------------------------------------------------------------------
    def _send(self, orders: Orders) -> None:
        for task, order in orders:
            self._clients[task].send(frames.pack(order))  # not taken: nobody is there, and that is found by its silence

    def _hear_while_worth_it(self) -> None:
        while self._holding.wait_s(self._clock.monotonic()):
            if not self._hear_all():
                next(iter(self._clients.values())).wait(WAIT_S_MIN)

    def _hear_all(self) -> bool:
        """Whether anybody has said anything."""
        heard = [self._hear(task, client) for task, client in self._clients.items()]
        return any(heard)

    def _hear(self, task: TaskId, client: BulkClient) -> bool:
        has_spoken = False
        while (received := client.receive()) is not None:
            with contextlib.suppress(PeerError):
                self._holding.heard(task, frames.read_answer(received), self._clock.monotonic())
                has_spoken = True
        return has_spoken
