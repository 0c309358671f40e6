"""Relay between the keeper of the memory copy and the coordinator's checkpoint service.

Used by remote_tasks.py. The keeper has no connection to the service, so its request and the answer
pass through here. This module also chooses the keeper.
"""

from __future__ import annotations

from procsv.base.clock import Clock
from procsv.base.identity import CHECKPOINT, TaskId
from procsv.ipc.messaging.curve_transport import TcpServer
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.member_messages import AskSnapshot, KeepMirror, MirrorKept, SnapshotOffered
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.watchdog_messages import CopyKept
from procsv.ipc.messaging.zmq_transport import Client, Context, Waiter
from procsv.watchdog.core import events
from procsv.watchdog.edge.environment import NO_COPY, MemoryCopy
from procsv.watchdog.machines.core.membership import Member, Membership
from procsv.watchdog.machines.core.memory_copy import AVERAGE_BYTES_PER_S, choose_keeper


class MemoryCopyRelay:
    def __init__(
        self,
        context: Context,
        server: TcpServer,
        members: Membership,
        start: Start,
        clock: Clock,
        host: str,
        bytes_per_s: float = AVERAGE_BYTES_PER_S,
    ) -> None:
        """`host`: the coordinator's, named as members name theirs. `bytes_per_s`: the average rate
        over all copies that its machine can afford.
        """
        self._bytes_per_s = bytes_per_s
        self._context, self._server, self._members, self._start, self._clock = context, server, members, start, clock
        self._host = host
        self._waiter: Waiter | None = None
        self._keeper: TaskId | None = None  # the keeper's id in messages
        self._client: Client | None = None  # a connection to the service for the keeper
        self._unasked: AskSnapshot | None = None  # the keeper's request, while no descriptor is free for a connection
        self.kept = NO_COPY

    def listen(self, waiter: Waiter) -> None:
        self._waiter = waiter

    def order_keeper(self) -> None:
        """Order a new keeper to begin, if it has changed, and retry a request that could not be
        sent.
        """
        if (unasked := self._unasked) is not None:
            self._ask(unasked)
        member = choose_keeper(self._members.with_tasks, self._host)
        keeper = TaskId("member", member.number) if member is not None else None
        if keeper == self._keeper:
            return
        self._forget()
        self._keeper = keeper
        if keeper is not None:
            self._server.broadcast(KeepMirror(self._bytes_per_s), keeper)

    def told(self, member: Member, news: AskSnapshot | MirrorKept) -> list[events.Event]:
        if self._keeper is None or member.number != self._keeper.index:
            return []  # this member kept a copy for an earlier coordinator
        if isinstance(news, MirrorKept):
            self.kept = MemoryCopy(member.host, news.step)
            return [events.Forwarded(self._start.chief, CopyKept(news.sequence))]
        self._ask(news)
        return []

    def _ask(self, body: AskSnapshot) -> None:
        if self._client is None:
            assert self._keeper is not None
            self._unasked = body
            try:
                self._client = self._connect(Address(self._start.run, self._keeper, 1))
            except OSError:  # no descriptors left
                return
            self._unasked = None
            if self._waiter is not None:
                self._waiter.register(self._client)
        self._client.send_reliable(body)

    def _connect(self, me: Address) -> Client:
        """Connect to the checkpoint service."""
        return Client(self._context, self._start.paths.service_socket(CHECKPOINT), me, self._clock)

    def relay_answers(self) -> None:
        """Pass the service's answers on to the keeper."""
        client = self._client
        if client is None or self._keeper is None:
            return
        client.resend_due()
        while (received := client.receive()) is not None:
            client.acknowledge(received)
            if isinstance(received.body, SnapshotOffered):
                self._server.broadcast(received.body, self._keeper)

    def forget_member(self, member: Member) -> None:
        """Forget a member whose launch is dead, so that its successor gets the order, too."""
        if self._keeper is not None and member.number == self._keeper.index:
            self._keeper = None
            self._forget()

    def close(self) -> None:
        self._forget()

    def _forget(self) -> None:
        if self._client is not None:
            if self._waiter is not None:
                self._waiter.remove(self._client)
            self._client.close()
            self._client = None
        self._unasked = None
        self.kept = NO_COPY
