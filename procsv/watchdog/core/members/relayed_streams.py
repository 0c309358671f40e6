"""Event streams of a task whose summary service is on another machine: what its launch has taken and not passed on yet.

Pure.  Used by edge/members/summary_stand_in.py.  To the task it is the summary service, to that the task: it takes records in order,
answers for them, and keeps each until the service has said that it is in the event file.  So a task that dies, and a link that is
cut, lose none; only the end of the launch does.

The attempts of the task follow each other, as on one machine: nothing of a later one is passed on before all of an earlier one is
written, for the service hears no attempt any more once a later one has spoken.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from procsv.base.clock import first_due_s
from procsv.ipc.messaging.event_backlog import BATCH_BYTES_MAX, Batch, EventBacklog
from procsv.ipc.messaging.summary_messages import CloseWriter, OpenWriter, Records, Written

KEPT_RECORDS_MAX = (
    10_000  # not yet written, of all streams; then no more are taken, and the task keeps as many of its own
)
KEPT_BYTES_MAX = 64 * 2**20  # likewise
RECORD_BYTES_MAX = 6 * BATCH_BYTES_MAX  # a larger one fits into no message: it is left out, and counted
RESEND_S = 5.0  # longer than within a machine: what is late on a slow link is not sent twice.  A new connection does not wait for it
UNKNOWN = -1  # Written.through of a stream that is not open
FULL = "the coordinator's machine does not take them, and the launch of this task has as many as it keeps"

Message = OpenWriter | Records | CloseWriter


class _Stream(msgspec.Struct):
    backlog: EventBacklog  # towards the service, with numbers of its own
    taken: int = 0  # the last number of the task's
    is_closed: bool = False  # by the task


class RelayedStreams:
    """Those of one task, by attempt and name."""

    def __init__(self) -> None:
        self._attempts: dict[int, dict[str, _Stream]] = {}  # by incarnation, rising
        self._newest = 0
        self.left_out = 0  # records that were too large

    # -- the task's side -----------------------------------------------------------------------------------
    def began(self, incarnation: int) -> bool:
        """That attempt has spoken; those before it are dead.  False if it is one of these itself."""
        if incarnation < self._newest:
            return False
        if incarnation > self._newest:
            self._newest = incarnation
            for streams in self._attempts.values():
                for stream in streams.values():
                    stream.backlog.end_stream()  # nothing follows what they have sent
        return True

    def taken(self, incarnation: int, writer: str) -> int:
        """How far that stream has been taken; 0 if it is not open."""
        stream = self._attempts.get(incarnation, {}).get(writer)
        return stream.taken if stream is not None else 0

    def heard(self, incarnation: int, message: Message) -> Written:
        """Takes what the newest attempt sends; the answer to it.  What was in parcels must be in its records."""
        streams = self._attempts.setdefault(incarnation, {})
        stream = streams.get(message.writer)
        match message:
            case OpenWriter(writer, logdir, suffix) if stream is None:
                stream = streams[writer] = _Stream(EventBacklog(writer, logdir, suffix, RESEND_S))
            case Records(_, first, records) if stream is not None and not stream.is_closed:
                self._take(stream, first, records)
            case CloseWriter(_, last) if stream is not None and stream.taken >= last:
                stream.is_closed = True
                stream.backlog.end_stream()
        if stream is None:
            return Written(message.writer, UNKNOWN, "")
        return Written(message.writer, stream.taken, stream.backlog.error or (FULL if self._is_full(0) else ""))

    def _take(self, stream: _Stream, first: int, records: tuple[bytes, ...]) -> None:
        if first > stream.taken + 1:
            return  # what is between them is lost, and comes again
        for record in records[stream.taken + 1 - first :]:
            if self._is_full(len(record)):
                return
            stream.taken += 1
            if len(record) > RECORD_BYTES_MAX:
                self.left_out += 1
            else:
                stream.backlog.add_record(record)

    def _is_full(self, more_bytes: int) -> bool:
        kept = [stream.backlog for stream in self._streams()]
        records, size = sum(one.unwritten for one in kept), sum(one.unwritten_bytes for one in kept)
        return records >= KEPT_RECORDS_MAX or size + min(more_bytes, RECORD_BYTES_MAX) > KEPT_BYTES_MAX

    # -- the service's side --------------------------------------------------------------------------------
    def due(self, now_s: float) -> list[tuple[int, Message]]:
        """What is to be sent now, each with its attempt.  None of it is sure to arrive: it is repeated until it is answered."""
        found: list[tuple[int, Message]] = []
        self._forget_written()
        for incarnation, stream in self._sending():
            for item in stream.backlog.due(now_s):
                message = Records(item.writer, item.first, item.records, {}) if isinstance(item, Batch) else item
                found.append((incarnation, message))
        return found

    def next_due_s(self, now_s: float) -> float | None:
        """When `due` has something to send if nothing is heard before; None: never."""
        return first_due_s(stream.backlog.next_due_s(now_s) for _, stream in self._sending())

    def on_written(self, written: Written, now_s: float) -> None:
        """The service's answer."""
        for stream in self._streams():
            if stream.backlog.writer == written.writer:
                stream.backlog.on_written(written.through, written.error, now_s)
        self._forget_written()

    def connected(self) -> None:
        """A new connection to the coordinator: what is not answered is asked again."""
        for stream in self._streams():
            stream.backlog.connected()

    def follow_run(self) -> None:
        """Another coordinator, whose run is another one, has taken the task: what is not written goes to new files."""
        for streams in self._attempts.values():
            for name, stream in streams.items():
                stream.backlog.rename(name)

    # -- what is left --------------------------------------------------------------------------------------
    @property
    def unwritten(self) -> int:
        """Records that are kept here."""
        return sum(stream.backlog.unwritten for stream in self._streams())

    def is_written(self, incarnation: int) -> bool:
        """Whether all that has come of that attempt, and of those before it, is in event files."""
        return not any(
            stream.backlog.unwritten
            for number, streams in self._attempts.items()
            if number <= incarnation
            for stream in streams.values()
        )

    def _streams(self) -> Iterator[_Stream]:
        for streams in self._attempts.values():
            yield from streams.values()

    def _sending(self) -> Iterator[tuple[int, _Stream]]:
        """The streams of the oldest attempt that is not written; of a dead one all, before any of the next."""
        for incarnation, streams in self._attempts.items():
            yield from ((incarnation, stream) for stream in streams.values())
            return

    def _forget_written(self) -> None:
        """Drops dead attempts of which nothing is left to say; a closed stream of a living one is still answered for."""
        for incarnation in list(self._attempts):
            is_over = all(stream.backlog.is_closed for stream in self._attempts[incarnation].values())
            if incarnation >= self._newest or not is_over:
                return
            del self._attempts[incarnation]
