"""Event records on their way to the summary service: the sender's end of one stream.

Pure bookkeeping: no socket, file or clock.  The trainer's EventStreams
(procsv/training/runtime/event_streams.py) and tests call it.  It never blocks, never grows beyond
its bounds, and never sends a record under two numbers.

A record gets a *ticket* when it is added (1, 2, …), and its *number* in the stream when it is first
sent.  Numbers have no gaps.  A sent record keeps its number, and stays here until it is written,
because it may already be in the file.  If there are too many records, the oldest one that was never
sent is dropped and counted.  So numbers need no repair, and a reader of the file only sees a hole
in the steps.

    added ──> waiting ──> sent ──> written
                 └──> dropped

Go-back-N: all of `sent` is sent again after a second of silence, after a reconnection, or after an
answer that the service does not know the stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

import msgspec

from procsv.ipc.messaging.summary_messages import CloseWriter, OpenWriter

BATCH_BYTES_MAX = 2**20  # a longer record is a batch of its own, sent as a parcel
BATCH_RECORDS_MAX = 512
SENT_BATCHES_MAX = 4  # sent and not answered
QUEUE_RECORDS_MAX = 10_000  # unwritten; above it, the oldest unsent record is dropped and counted
QUEUE_BYTES_MAX = 256 * 2**20  # likewise
RESEND_S = 1.0  # after this silence, everything unanswered is sent again
# After impossible answers for this long, the service must have lost its notes on the stream.  The unwritten records
# then go to a stream with a new name.
LOST_S = 5.0


class Batch(msgspec.Struct, frozen=True):
    """The records `first`, `first` + 1, … to send now."""

    writer: str
    first: int
    records: tuple[bytes, ...]

    @property
    def is_parcel(self) -> bool:
        return len(self.records) == 1 and len(self.records[0]) > BATCH_BYTES_MAX


class EventBacklog:
    """One stream, from its first record to CloseWriter.

    Its messages are OpenWriter, Batch (Records) and CloseWriter.
    """

    def __init__(self, writer: str, logdir: str, suffix: str) -> None:
        self.writer = writer  # its name at the service
        self.error = ""  # why records do not reach the file, in the service's words
        self.dropped = 0
        self.is_closed = False  # nothing more will be sent
        self._logdir, self._suffix = logdir, suffix
        self._sent: deque[tuple[int, bytes]] = deque()  # (ticket, record); their numbers are _written + 1, …
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._added = 0  # the last ticket
        self._written = 0  # the last number known to be in the file
        self._on_their_way = 0  # how many of `_sent` were sent since the last go-back
        self._flying: deque[int] = deque()  # the last number of each sent and unanswered batch
        self._is_open = False  # the service knows the stream
        self._is_ending = False
        self._asked_s: float | None = None  # when OpenWriter or CloseWriter was last sent
        self._news_s = 0.0  # when the service last made progress, or something was sent after a pause
        self._lost_s: float | None = None  # since when the service's answers are impossible
        self._given_name = writer
        self._losses = 0

    # -- the training side -------------------------------------------------------------------------
    def add_record(self, record: bytes) -> int:
        """Queues a serialized Event and returns its ticket."""
        self._added += 1
        self._waiting.append((self._added, record))
        self._bytes += len(record)
        while self._waiting and (self.unwritten > QUEUE_RECORDS_MAX or self._bytes > QUEUE_BYTES_MAX):
            self._bytes -= len(self._waiting.popleft()[1])
            self.dropped += 1
        return self._added

    def end_stream(self) -> None:
        """Marks the end of the records; CloseWriter follows once the last one is written."""
        self._is_ending = True

    @property
    def last_ticket(self) -> int:
        return self._added

    @property
    def unwritten(self) -> int:
        """Number of records kept here that are not known to be in the file."""
        return len(self._sent) + len(self._waiting)

    @property
    def can_send_more(self) -> bool:
        """Whether a new record could be sent now, or the stream could be opened for it."""
        return len(self._flying) < SENT_BATCHES_MAX if self._is_open else self._asked_s is None

    def is_done(self, ticket: int) -> bool:
        """Whether that record and all before it are in the file, or were dropped."""
        oldest = self._sent or self._waiting
        return not oldest or ticket < oldest[0][0]

    # -- the link's side ---------------------------------------------------------------------------
    def rename(self, writer: str) -> None:
        """Moves the unwritten records to a new stream `writer` and a new file, for another run."""
        self._given_name, self._losses = writer, 0
        self._begin_anew(writer)

    def connected(self) -> None:
        """Asks how far the stream has got: a new connection may lead to a new service."""
        self._is_open, self._asked_s = False, None
        self._go_back()

    def due(self, now_s: float) -> list[OpenWriter | Batch | CloseWriter]:
        """Returns the messages to send now."""
        if self.is_closed:
            return []
        if not self.unwritten:
            if not self._is_ending:
                return []
            if not self._written:
                self.is_closed = True  # like TensorFlow: no event, no file
                return []
            return [CloseWriter(self.writer, self._written)] if self._may_ask(now_s) else []
        if not self._is_open:
            return [OpenWriter(self.writer, self._logdir, self._suffix)] if self._may_ask(now_s) else []
        if self._flying and now_s >= self._news_s + RESEND_S:
            self._go_back()
        batches: list[OpenWriter | Batch | CloseWriter] = []
        while len(self._flying) < SENT_BATCHES_MAX and (batch := self._next_batch()) is not None:
            if not self._flying:
                self._news_s = now_s  # silence counts from here
            self._flying.append(batch.first + len(batch.records) - 1)
            batches.append(batch)
        return batches

    def next_due_s(self, now_s: float) -> float | None:
        """When `due` will next return something if nothing is received or added; None: never."""
        if self.is_closed or not (self.unwritten or self._is_ending):
            return None
        if not self.unwritten or not self._is_open:
            return now_s if self._asked_s is None else self._asked_s + RESEND_S
        if len(self._flying) < SENT_BATCHES_MAX and (self._waiting or self._on_their_way < len(self._sent)):
            return now_s
        return self._news_s + RESEND_S

    def on_written(self, through: int, error: str, now_s: float) -> None:
        """Handles an answer: records up to `through` (-1: unknown stream) are written."""
        if self.is_closed:
            return
        self.error = error
        is_closing = self._is_ending and not self.unwritten and self._asked_s is not None
        if through < 0:
            if is_closing:
                self.is_closed = True  # all was written before CloseWriter, and a previous CloseWriter arrived
            elif self._is_open:
                self.connected()
        elif not self._written <= through <= self._written + len(self._sent):
            self._on_impossible_answer(now_s)
        elif is_closing:
            self.is_closed = True
        else:
            self._lost_s = None
            if not self._is_open:
                self._is_open, self._asked_s = True, None
            self._acknowledge_through(through, now_s)

    # -- inside ------------------------------------------------------------------------------------
    def _acknowledge_through(self, through: int, now_s: float) -> None:
        count = through - self._written
        for _ in range(count):
            self._bytes -= len(self._sent.popleft()[1])
        self._written = through
        self._on_their_way = max(0, self._on_their_way - count)
        while self._flying and self._flying[0] <= through:
            self._flying.popleft()
        if count:
            self._news_s = now_s

    def _next_batch(self) -> Batch | None:
        first = self._written + self._on_their_way + 1
        if self._on_their_way == len(self._sent):
            for entry in _fitting(iter(self._waiting)):
                self._sent.append(entry)
            for _ in range(len(self._sent) - self._on_their_way):
                self._waiting.popleft()
        records = tuple(record for _, record in _fitting(islice(self._sent, self._on_their_way, None)))
        self._on_their_way += len(records)
        return Batch(self.writer, first, records) if records else None

    def _go_back(self) -> None:
        self._on_their_way = 0
        self._flying.clear()

    def _may_ask(self, now_s: float) -> bool:
        if self._asked_s is not None and now_s < self._asked_s + RESEND_S:
            return False
        self._asked_s = now_s
        return True

    def _on_impossible_answer(self, now_s: float) -> None:
        """Handles an answer that is late, or from a service that has lost its notes.

        A service loses its notes if its run directory is swept.  After LOST_S of such answers,
        unwritten records go to a new file.  A record that the service wrote just before it lost its
        notes is then in both files; nothing could detect that.
        """
        if self._is_open:
            return
        if self._lost_s is None:
            self._lost_s = now_s
        if now_s < self._lost_s + LOST_S:
            return
        self._losses += 1
        self._begin_anew(f"{self._given_name}.{self._losses}")

    def _begin_anew(self, writer: str) -> None:
        self.writer = writer
        self._written, self._lost_s = 0, None
        self.connected()


def _fitting(entries: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The entries of one batch; at least one, if there is one."""
    size = 0
    for count, entry in enumerate(entries):
        size += len(entry[1])
        if count and (size > BATCH_BYTES_MAX or count == BATCH_RECORDS_MAX):
            return
        yield entry
