"""Links of tasks on other machines to the summary service of this one: a connection each, as if the task were here.

Used by remote_tasks.py.  What comes here may be lost or come twice: the launch of the task repeats it, and the service writes each
record once.  It is not told of the processes, which are on other machines.
"""

from __future__ import annotations

from collections import deque

from procsv.base.clock import Clock
from procsv.base.errors import PeerError
from procsv.base.identity import SUMMARY, TaskId
from procsv.ipc.messaging.codec import decode_body, encode_body
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.member_messages import RecordsWritten, TaskRecords
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.summary_messages import CloseWriter, OpenWriter, Records, Written
from procsv.ipc.messaging.zmq_transport import Client, Context, Waiter

WAITING_MAX = 16  # messages to a service that is not connected; then the oldest is dropped, and comes again


class _Link:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.waiting = deque[Message](maxlen=WAITING_MAX)

    def send(self, body: Message) -> None:
        if self.waiting or not self.client.send(body):
            self.waiting.append(body)

    def tick(self) -> None:
        self.client.tick()
        while self.waiting and self.client.send(self.waiting[0]):
            self.waiting.popleft()


class SummaryLinks:
    """Those of the newest attempts that have sent records, by task."""

    def __init__(self, context: Context, start: Start, clock: Clock) -> None:
        self._context, self._start, self._clock = context, start, clock
        self._waiter: Waiter | None = None
        self._links: dict[TaskId, _Link] = {}

    def listen(self, waiter: Waiter) -> None:
        self._waiter = waiter

    def pass_on(self, sent: TaskRecords) -> None:
        """To the service.  PeerError if it is nothing that a task sends there."""
        body = decode_body(sent.body)
        if not isinstance(body, OpenWriter | Records | CloseWriter) or (isinstance(body, Records) and body.parcels):
            raise PeerError(f"{type(body).__name__} as event records")
        link = self._links.get(sent.task)
        if link is not None and sent.incarnation < link.client.me.incarnation:
            return  # it comes late; its launch sends nothing of an attempt before all of the one before is written
        if link is None or sent.incarnation > link.client.me.incarnation:
            self.forget(sent.task)
            link = self._links[sent.task] = self._connect(sent.task, sent.incarnation)
        link.send(body)

    def _connect(self, task: TaskId, incarnation: int) -> _Link:
        me = Address(self._start.run, task, incarnation)
        client = Client(self._context, self._start.paths.service_socket(SUMMARY), me, self._clock)
        if self._waiter is not None:
            self._waiter.add(client)
        return _Link(client)

    def hear(self) -> list[RecordsWritten]:
        """What the service has answered."""
        answers: list[RecordsWritten] = []
        for task, link in self._links.items():
            link.tick()
            while (received := link.client.receive()) is not None:
                link.client.acknowledge(received)
                if isinstance(received.body, Written):
                    answers.append(RecordsWritten(task, link.client.me.incarnation, encode_body(received.body)))
        return answers

    def has(self, thing: object) -> bool:
        """Whether `thing`, which the event loop has news of, is one of these links."""
        return any(link.client is thing for link in self._links.values())

    def forget(self, task: TaskId) -> None:
        """Nobody waits for answers any more."""
        if (link := self._links.pop(task, None)) is None:
            return
        if self._waiter is not None:
            self._waiter.remove(link.client)
        link.client.close()

    def close(self) -> None:
        for task in list(self._links):
            self.forget(task)
