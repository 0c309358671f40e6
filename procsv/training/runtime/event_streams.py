"""Event streams: the trainer's backlogs of event records, one for each summary writer.

Between two threads: writers (training, the Supervisor's services, hooks) call the EventSink half, and only ever
append to a queue; the trainer's link thread calls the other half, says what `messages` gives it and tells what it
hears.  Never imports ZeroMQ, never touches a disk on a writer's thread.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from procsv.base.clock import Clock
from procsv.base.system_clock import SystemClock
from procsv.ipc.messaging.event_backlog import Batch, EventBacklog, parcel_name
from procsv.ipc.messaging.messages import Message, Records, Written

INLINE_BYTES_MAX = 6 * 2**20  # a record that no parcel can be made for still goes by message up to here


class EventSink(Protocol):
    """What a SummaryWriter needs: named streams of records, each of which becomes one event file."""

    def open(self, logdir: str, filename_suffix: str) -> str:
        """Begins a stream; its name.  The file appears with the first record."""

    def add(self, writer: str, event: bytes) -> None:
        """Takes a serialized Event.  Never blocks; any thread."""

    def flush(self, writer: str, timeout_s: float) -> bool:
        """Waits until all records are in the file; False if that takes longer than `timeout_s`, or nobody writes."""

    def close(self, writer: str, timeout_s: float) -> bool:
        """Ends the stream and waits like `flush`.  What is late is still written if the process lives on."""

    def unwritten(self, writer: str) -> int:
        """How many records are not known to be in the file."""


class EventStreams:
    """An EventSink over a link to the summary service.

    `begin` ties it to a run; records that are added before wait.  `on_need` is called, from any thread and often,
    when `messages` has something new to say.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.on_need: Callable[[], None] = _nothing
        self._clock = clock or SystemClock()
        self._news = threading.Condition()
        self._backlogs: dict[str, EventBacklog] = {}  # by the name that writers use
        self._opened = 0
        self._incarnation: int | None = None
        self._parcel_dirs: tuple[Path, ...] = ()
        self._parcels: dict[tuple[str, int], Path] = {}  # that were made and are not known to be written
        self._graphs = itertools.count()
        self._dropped_before = 0  # by streams that are closed

    def begin(self, shm_dir: Path, incarnation: int, spare_dir: Path | None = None) -> None:
        """A run begins, or another one: what is not written goes there, to new files.

        Large records lie in `shm_dir` on their way, and where that has no room in `spare_dir` (the run directory).
        """
        with self._news:
            self._incarnation = incarnation
            self._parcel_dirs = (shm_dir,) if spare_dir is None else (shm_dir, spare_dir)
            self._parcels.clear()
            for name, backlog in self._backlogs.items():
                backlog.rename(f"{incarnation}-{name}")
        self.on_need()

    def end(self) -> None:
        """The run is over: nobody writes any more, and whoever waits is let go."""
        with self._news:
            self._incarnation = None
            self._news.notify_all()

    # -- EventSink -----------------------------------------------------------------------------------------
    def open(self, logdir: str, filename_suffix: str) -> str:
        with self._news:
            name = str(self._opened)
            self._opened += 1
            there = f"{self._incarnation}-{name}" if self._incarnation is not None else name
            self._backlogs[name] = EventBacklog(there, str(Path(logdir).absolute()), filename_suffix)
        return name

    def add(self, writer: str, event: bytes) -> None:
        with self._news:
            backlog = self._backlogs.get(writer)
            if backlog is None:
                return  # closed meanwhile, on another thread
            backlog.add(event)
            can_say_more = backlog.can_say_more
        if can_say_more:
            self.on_need()

    def flush(self, writer: str, timeout_s: float) -> bool:
        with self._news:
            backlog = self._backlogs.get(writer)
        return backlog is None or self.wait_written(writer, backlog.last_ticket, timeout_s)

    def close(self, writer: str, timeout_s: float) -> bool:
        with self._news:
            backlog = self._backlogs.get(writer)
            if backlog is None:
                return True
            backlog.end()
        self.on_need()
        return self.wait_written(writer, backlog.last_ticket, timeout_s)

    def unwritten(self, writer: str) -> int:
        with self._news:
            backlog = self._backlogs.get(writer)
            return backlog.unwritten if backlog is not None else 0

    def wait_written(self, writer: str, ticket: int, timeout_s: float) -> bool:
        """Whether that record and all before it were in the file (or dropped) within `timeout_s`.

        False at once if no run has begun: nobody is there to write them yet.
        """
        with self._news:
            backlog = self._backlogs.get(writer)
            if backlog is None:
                return True
            self._news.wait_for(lambda: backlog.is_done(ticket) or self._incarnation is None, timeout_s)
            return backlog.is_done(ticket)

    # -- the link thread -----------------------------------------------------------------------------------
    def messages(self, now_s: float) -> list[Message]:
        """What to say to the summary service now, unreliably (`say`): all of it is said again until answered."""
        with self._news:
            if self._incarnation is None:
                return []
            due = [item for b in self._backlogs.values() for item in b.due(now_s)]
            self._forget_closed()
        said: list[Message] = []
        for item in due:
            message = self._pack(item) if isinstance(item, Batch) else item
            if message is not None:
                said.append(message)
        return said

    def next_due_s(self, now_s: float) -> float | None:
        """When `messages` will have something to say if nothing happens; None: not before something does."""
        with self._news:
            times = [b.next_due_s(now_s) for b in self._backlogs.values()]
        return min((due_s for due_s in times if due_s is not None), default=None)

    def on_connected(self) -> None:
        """The link has a new connection to the summary service."""
        with self._news:
            for backlog in self._backlogs.values():
                backlog.connected()

    def on_written(self, written: Written) -> None:
        """An answer has come."""
        with self._news:
            for backlog in self._backlogs.values():
                if backlog.writer == written.writer:
                    backlog.on_written(written.through, written.error, self._clock.monotonic())
            self._drop_parcels(written)
            self._forget_closed()
            self._news.notify_all()

    def put_parcel(self, data: bytes) -> str:
        """Lays `data` down for GraphText; the path.  OSError if there is no room for it."""
        return str(self._write_parcel(parcel_name(f"{self._incarnation}-graph", next(self._graphs)), data))

    # -- what is known of them -------------------------------------------------------------------------------
    @property
    def unwritten_in_all(self) -> int:
        """Records of all streams that are not known to be in their files."""
        with self._news:
            return sum(b.unwritten for b in self._backlogs.values())

    @property
    def dropped(self) -> int:
        """Records of all streams that were dropped because the service was away, or its disk full, for too long."""
        with self._news:
            return self._dropped_before + sum(b.dropped for b in self._backlogs.values())

    @property
    def error(self) -> str:
        """Why records are not getting to a file, in the service's words; "" if they are."""
        with self._news:
            return next((b.error for b in self._backlogs.values() if b.error), "")

    # -- inside --------------------------------------------------------------------------------------------
    def _forget_closed(self) -> None:
        for name in [n for n, b in self._backlogs.items() if b.is_closed]:
            self._dropped_before += self._backlogs.pop(name).dropped
            self._news.notify_all()

    def _pack(self, batch: Batch) -> Records | None:
        """The message; None if its one large record has no place to lie in now: like a lost one, it is said again."""
        if not batch.is_parcel:
            return Records(batch.writer, batch.first, batch.records, {})
        parcel = self._parcel(batch)
        if parcel is not None:
            return Records(batch.writer, batch.first, (b"",), {batch.first: str(parcel)})
        if len(batch.records[0]) <= INLINE_BYTES_MAX:
            return Records(batch.writer, batch.first, batch.records, {})
        return None

    def _parcel(self, batch: Batch) -> Path | None:
        """The file with the batch's one record: as it was left when it was said before, or a new one."""
        key, data = (batch.writer, batch.first), batch.records[0]
        with contextlib.suppress(OSError):
            if (path := self._parcels.get(key)) is not None and path.stat().st_size == len(data):
                return path
        try:
            path = self._write_parcel(parcel_name(*key), data)
        except OSError:
            return None
        with self._news:
            self._parcels[key] = path
        return path

    def _write_parcel(self, name: str, data: bytes) -> Path:
        """Makes the file in the first directory that has room; OSError if none has."""
        for directory in self._parcel_dirs[:-1]:
            with contextlib.suppress(OSError):
                return _write_whole(directory / name, data)
        return _write_whole(self._parcel_dirs[-1] / name, data)

    def _drop_parcels(self, written: Written) -> None:
        """The service removes parcels; this is for those that it was killed over."""
        for key in [k for k in self._parcels if k[0] == written.writer and k[1] <= written.through]:
            with contextlib.suppress(OSError):
                self._parcels.pop(key).unlink(missing_ok=True)


def _write_whole(path: Path, data: bytes) -> Path:
    temporary = path.with_name(f"{path.name}.new")
    try:
        temporary.write_bytes(data)
        return temporary.rename(path)  # killed before: the service sweeps it when the next trainer comes
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _nothing() -> None:
    """Nobody to wake."""
