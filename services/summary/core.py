"""Decide what the summary service writes: pure, without disk, socket or clock.

process.py calls it with each message and with the result of each write, and carries out the actions
that it returns.  The core never keeps a record.  If a record cannot be written now, the sender
keeps it and sends it again (procsv/training/runtime/event_backlog.py).

A *stream* is one event writer of an attempt, and has event files of its own.  Its records are
numbered from 1 and are written strictly in order.  If the first records of a batch are already
written, only the others are written.  A batch that would leave a gap is refused.  Each answer names
the last record written.  So each record is written exactly once, even if messages are lost,
repeated or late.

A *parcel* is a file in shared memory or in the run directory that holds one large record.  The
message has only the parcel's path.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from procsv.base.errors import PeerError
from procsv.base.identity import TaskId, parse_attempt
from procsv.ipc.messaging.summary_messages import CloseWriter, OpenWriter, Records, Written

UNKNOWN = -1  # Written.through for a stream that is not open here


class Open(msgspec.Struct, frozen=True):
    """Start a stream.  Its file is created with its first record."""

    writer: str
    logdir: str
    suffix: str


class Append(msgspec.Struct, frozen=True):
    """Write these records, all or none, then call `appended` or `append_failed`.

    A Path names a parcel.
    """

    who: bytes
    writer: str
    records: tuple[bytes | Path, ...]


class Close(msgspec.Struct, frozen=True):
    """End a stream: close its file and forget it."""

    writer: str


class Discard(msgspec.Struct, frozen=True):
    """Remove these parcels: their records are in the file."""

    parcels: tuple[Path, ...]


class Sweep(msgspec.Struct, frozen=True):
    """Remove the parcels that attempts of this task before `incarnation` left."""

    task: TaskId
    incarnation: int


class SummaryReply(msgspec.Struct, frozen=True):
    who: bytes
    body: Written


Action = Open | Append | Close | Discard | Sweep | SummaryReply


class _Stream(msgspec.Struct):
    through: int = 0
    error: str = ""  # why the last batch could not be written


class SummaryCore(msgspec.Struct):
    """The streams of one run, by name.  A name is "<attempt of its task>-<anything>"."""

    parcel_dirs: tuple[Path, ...]  # a parcel anywhere else is not ours and is not read
    records_written: int = 0
    _newest: dict[TaskId, int] = msgspec.field(default_factory=dict)  # the newest incarnation of each task
    _streams: dict[str, _Stream] = msgspec.field(default_factory=dict)
    _closed: dict[str, int] = msgspec.field(default_factory=dict)  # stream that its attempt closed -> its last record

    # -- messages -----------------------------------------------------------------------------------------
    def recovered(self, writer: str, through: int) -> None:
        """Continues a stream that an earlier process of this service wrote.

        `through` is the last record in its file.
        """
        self._streams[writer] = _Stream(through)

    def attempt_began(self, task: TaskId, incarnation: int) -> list[Action]:
        """Notes an attempt that has sent a message.

        Ends the streams of the task's earlier attempts.  Returns no actions if this attempt or a
        later one is already known.
        """
        if incarnation <= self._newest.get(task, 0):
            return []
        self._newest[task] = incarnation
        dead = [name for name in self._streams if self._is_outdated(name)]
        for name in dead:
            del self._streams[name]
        self._closed = {name: through for name, through in self._closed.items() if not self._is_outdated(name)}
        return [*(Close(name) for name in dead), Sweep(task, incarnation)]

    def _is_outdated(self, writer: str) -> bool:
        return self.is_stale(*attempt_of(writer))

    def is_stale(self, task: TaskId, incarnation: int) -> bool:
        """Whether a later attempt of the task has sent a message.

        Messages of a stale attempt take no effect.
        """
        return incarnation < self._newest.get(task, 0)

    def open(self, who: bytes, message: OpenWriter) -> list[Action]:
        attempt_of(message.writer)
        if message.writer in self._streams or message.writer in self._closed:
            return [self._reply(who, message.writer)]
        self._streams[message.writer] = _Stream()
        return [Open(message.writer, message.logdir, message.filename_suffix), self._reply(who, message.writer)]

    def records(self, who: bytes, message: Records) -> list[Action]:
        stream = self._streams.get(message.writer)
        if stream is None:
            return [self._reply(who, message.writer)]
        parcels = {number: self.check_parcel(path) for number, path in message.parcels.items()}
        old = tuple(path for number, path in parcels.items() if number <= stream.through)
        # Parcels of written records are still there if the process was killed before it removed them.
        actions: list[Action] = [Discard(old)] if old else []
        skip = stream.through + 1 - message.first
        if skip < 0 or skip >= len(message.records):
            return [*actions, self._reply(who, message.writer)]
        items = tuple(
            parcels.get(message.first + index, data) for index, data in enumerate(message.records) if index >= skip
        )
        return [*actions, Append(who, message.writer, items)]

    def close_stream(self, who: bytes, message: CloseWriter) -> list[Action]:
        stream = self._streams.get(message.writer)
        if stream is None or stream.through < message.last:
            return [self._reply(who, message.writer)]
        del self._streams[message.writer]
        self._closed[message.writer] = stream.through
        return [Close(message.writer), self._reply(who, message.writer)]

    def close_all(self) -> list[Action]:
        """Closes all streams, because the run is over."""
        names = list(self._streams)
        self._streams.clear()
        return [Close(name) for name in names]

    # -- results of writes ---------------------------------------------------------------------------------
    def appended(self, done: Append) -> list[Action]:
        stream = self._streams[done.writer]
        stream.through += len(done.records)
        stream.error = ""
        self.records_written += len(done.records)
        parcels = tuple(item for item in done.records if isinstance(item, Path))
        return [self._reply(done.who, done.writer), *([Discard(parcels)] if parcels else [])]

    def append_failed(self, tried: Append, error: str) -> list[Action]:
        """Notes that nothing of the batch is in the file.

        The reply makes the sender send it again.
        """
        self._streams[tried.writer].error = error
        return [self._reply(tried.who, tried.writer)]

    def error(self) -> str:
        """Why the records of some stream cannot be written; "" if all can."""
        return next((s.error for s in self._streams.values() if s.error), "")

    def check_parcel(self, path: str) -> Path:
        """Returns the parcel's path.

        PeerError if it is not a parcel of this run, because a parcel is read and then removed.
        """
        parcel = Path(path)
        if parcel.parent not in self.parcel_dirs or not parcel.name.startswith("event."):
            raise PeerError(f"{path} is not a parcel of this run")
        return parcel

    # -- inside --------------------------------------------------------------------------------------------
    def _reply(self, who: bytes, writer: str) -> SummaryReply:
        stream = self._streams.get(writer)
        if stream is None:
            return SummaryReply(who, Written(writer, self._closed.get(writer, UNKNOWN), ""))
        return SummaryReply(who, Written(writer, stream.through, stream.error))


def attempt_of(writer: str) -> tuple[TaskId, int]:
    """Returns the attempt that a stream belongs to, from its name.

    PeerError for an invalid name, or one that could escape a directory.
    """
    head, _, tail = writer.partition("-")
    try:
        attempt = parse_attempt(head)
    except ValueError as error:
        raise PeerError(f"{writer!r} is not the name of a stream") from error
    if not (tail and all(c.isascii() and (c.isalnum() or c in ".-_") for c in tail)):
        raise PeerError(f"{writer!r} is not the name of a stream")
    return attempt
