"""The core of the summary service: pure decisions, without disk, socket or clock.

Called by process.py with each message and with how the disk took it; answers with actions.  Never keeps a
record: what cannot be written now is kept, and sent again, by its sender (procsv/training/runtime/event_backlog.py).

A stream takes records strictly in order.  The part of a batch that is written already is cut off, a batch that
begins too late is not taken, and both are answered with how far the stream has got: whatever is lost, doubled or
late on the way, each record is written once.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from procsv.base.errors import PeerError
from procsv.base.identity import TaskId, parse_attempt
from procsv.ipc.messaging.summary_messages import CloseWriter, OpenWriter, Records, Written

UNKNOWN = -1  # Written.through for a stream that is not open here


class Open(msgspec.Struct, frozen=True):
    """A stream begins; its file is made with its first record."""

    writer: str
    logdir: str
    suffix: str


class Append(msgspec.Struct, frozen=True):
    """Write these, all or nothing, and report back with `appended` or `failed`.  A Path names a parcel."""

    who: bytes
    writer: str
    records: tuple[bytes | Path, ...]


class Close(msgspec.Struct, frozen=True):
    """A stream ends: close its file and forget it."""

    writer: str


class Discard(msgspec.Struct, frozen=True):
    """These parcels are in the file: remove them."""

    parcels: tuple[Path, ...]


class Sweep(msgspec.Struct, frozen=True):
    """Remove what this task's attempts before `incarnation` have left in the shared memory."""

    task: TaskId
    incarnation: int


class SummaryReply(msgspec.Struct, frozen=True):
    who: bytes
    body: Written


Action = Open | Append | Close | Discard | Sweep | SummaryReply


class _Stream(msgspec.Struct):
    through: int = 0
    error: str = ""  # why the last batch did not get to the file


class SummaryCore(msgspec.Struct):
    """The streams of one run, by name.  A name is "<attempt of its task>-<anything>"."""

    parcel_dirs: tuple[Path, ...]  # where a parcel may lie; any other is none of ours, and is not read
    records_written: int = 0
    _newest: dict[TaskId, int] = msgspec.field(default_factory=dict)  # the incarnation of each task
    _streams: dict[str, _Stream] = msgspec.field(default_factory=dict)
    _closed: dict[str, int] = msgspec.field(default_factory=dict)  # of the newest attempts; how far each had got

    # -- messages -----------------------------------------------------------------------------------------
    def recovered(self, writer: str, through: int) -> None:
        """A stream that an earlier process of this service has written, up to and with `through`."""
        self._streams[writer] = _Stream(through)

    def attempt_began(self, task: TaskId, incarnation: int) -> list[Action]:
        """An attempt has spoken.  The streams of those before it end: nobody adds to them any more."""
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
        """Whether an attempt is dead and replaced: nothing that it sends takes effect."""
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
        actions: list[Action] = (
            [Discard(old)] if old else []
        )  # written, and the process was killed before it removed them
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
        """The run is over."""
        names = list(self._streams)
        self._streams.clear()
        return [Close(name) for name in names]

    # -- how the disk took it ------------------------------------------------------------------------------
    def appended(self, done: Append) -> list[Action]:
        stream = self._streams[done.writer]
        stream.through += len(done.records)
        stream.error = ""
        self.records_written += len(done.records)
        parcels = tuple(item for item in done.records if isinstance(item, Path))
        return [self._reply(done.who, done.writer), *([Discard(parcels)] if parcels else [])]

    def append_failed(self, tried: Append, error: str) -> list[Action]:
        """Nothing of it is in the file; its sender sends it again."""
        self._streams[tried.writer].error = error
        return [self._reply(tried.who, tried.writer)]

    def error(self) -> str:
        """Why some stream's records are not getting to its file; "" if they are."""
        return next((s.error for s in self._streams.values() if s.error), "")

    def check_parcel(self, path: str) -> Path:
        """The parcel's path; PeerError for one that is none of ours, as it would be read and removed."""
        parcel = Path(path)
        if parcel.parent not in self.parcel_dirs or not parcel.name.startswith("event."):
            raise PeerError(f"{path} is no parcel of this run")
        return parcel

    # -- inside --------------------------------------------------------------------------------------------
    def _reply(self, who: bytes, writer: str) -> SummaryReply:
        stream = self._streams.get(writer)
        if stream is None:
            return SummaryReply(who, Written(writer, self._closed.get(writer, UNKNOWN), ""))
        return SummaryReply(who, Written(writer, stream.through, stream.error))


def attempt_of(writer: str) -> tuple[TaskId, int]:
    """Whose a stream is, from its name; PeerError for a name that is none, or could leave a directory."""
    head, _, tail = writer.partition("-")
    try:
        attempt = parse_attempt(head)
    except ValueError as error:
        raise PeerError(f"{writer!r} is not the name of a stream") from error
    if not (tail and all(c.isascii() and (c.isalnum() or c in ".-_") for c in tail)):
        raise PeerError(f"{writer!r} is not the name of a stream")
    return attempt
