"""Event streams: the trainer's backlogs of event records, one for each event file.

They connect two kinds of threads.  Writers (training, the Supervisor's services, hooks) use one
half: they add records to a queue, and may wait until these are written.  The trainer's link thread
uses the other half: it sends what `messages` returns, and passes on what it receives.  There is no
ZeroMQ here.  Writers' records reach files only on other threads.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from procsv.base.clock import Clock, first_due_s
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.summary_messages import Records, Written, parcel_name
from procsv.training.runtime.event_backlog import Batch, EventBacklog

INLINE_BYTES_MAX = 6 * 2**20  # up to this size, a record without room for a parcel goes in a message


class EventStreams:
    """Named streams of records on their way to the summary service.

    Records wait until `attach_to_run` connects the streams to a run.  A record that is too large
    for a message travels as a *parcel*: a file that the message names.

    The owner sets two callbacks.  `on_need` is called when `messages` has something new to send,
    often, and on any thread.  `connected` returns a context in which a run exists; a stream with
    unwritten records is flushed or closed in such a context, so that something writes them.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.on_need: Callable[[], None] = lambda: None
        self.connected: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
        self._clock = clock or SystemClock()
        self._news = threading.Condition()
        self._backlogs: dict[str, EventBacklog] = {}  # by the name that writers use
        self._opened = 0
        self._attempt: str | None = None  # the task's attempt, which stream names begin with; None: no run
        self._parcel_dirs: tuple[Path, ...] = ()
        self._parcels: dict[tuple[str, int], Path] = {}  # written to disk, but not known to be in the file
        self._graphs = itertools.count()
        self._dropped_before = 0  # by closed streams

    def attach_to_run(self, shm_dir: Path, attempt: str, spare_dir: Path | None = None) -> None:
        """Sends unwritten records to this run, into new files.

        Large records go through `shm_dir`, or if that has no room, through `spare_dir` (the run
        directory).
        """
        with self._news:
            self._attempt = attempt
            self._parcel_dirs = (shm_dir,) if spare_dir is None else (shm_dir, spare_dir)
            self._parcels.clear()
            for name, backlog in self._backlogs.items():
                backlog.rename(f"{attempt}-{name}")
        self.on_need()

    def detach_from_run(self) -> None:
        """Leaves the run.  Nothing writes records from here on, so waiting threads return."""
        with self._news:
            self._attempt = None
            self._news.notify_all()

    def leave_to_parent(self) -> None:
        """In a fork: forgets all streams, and a lock that another thread may hold."""
        self._news, self._attempt = threading.Condition(), None
        self._backlogs.clear()

    # -- for writers -------------------------------------------------------------------------------
    def open_stream(self, logdir: str, filename_suffix: str = "") -> str:
        """Opens a stream and returns its name.  Its file appears with the first record."""
        with self._news:
            name = str(self._opened)
            self._opened += 1
            there = f"{self._attempt}-{name}" if self._attempt is not None else name
            self._backlogs[name] = EventBacklog(there, str(Path(logdir).absolute()), filename_suffix)
        return name

    def add_event(self, writer: str, event: bytes) -> None:
        """Queues a serialized Event.  Never blocks; any thread."""
        with self._news:
            backlog = self._backlogs.get(writer)
            if backlog is None:
                return  # another thread has closed it
            backlog.add_record(event)
            can_send_more = backlog.can_send_more
        if can_send_more:
            self.on_need()

    def flush_stream(self, writer: str, timeout_s: float) -> bool:
        """Waits until all records are in the file; False on timeout, or if no run writes them."""
        backlog = self._find_backlog(writer)
        if backlog is None:
            return True
        with self._connected_for(backlog):
            return self._wait_written(backlog, timeout_s)

    def close_stream(self, writer: str, timeout_s: float) -> bool:
        """Closes the stream and waits like `flush_stream`.

        Records that are not in the file after `timeout_s` are still written if the process
        continues.
        """
        backlog = self._find_backlog(writer)
        if backlog is None:
            return True
        with self._connected_for(backlog):
            with self._news:
                backlog.end_stream()
            self.on_need()
            return self._wait_written(backlog, timeout_s)

    def unwritten(self, writer: str | None = None) -> int:
        """Number of records of `writer` (default: of all) that are not known to be in its file."""
        with self._news:
            return sum(b.unwritten for name, b in self._backlogs.items() if writer in (None, name))

    def _find_backlog(self, writer: str) -> EventBacklog | None:
        with self._news:
            return self._backlogs.get(writer)

    def _wait_written(self, backlog: EventBacklog, timeout_s: float) -> bool:
        with self._news:
            ticket = backlog.last_ticket
            self._news.wait_for(lambda: backlog.is_done(ticket) or self._attempt is None, timeout_s)
            return backlog.is_done(ticket)

    def _connected_for(self, backlog: EventBacklog) -> AbstractContextManager[object]:
        return self.connected() if backlog.unwritten else contextlib.nullcontext()

    # -- the link thread ---------------------------------------------------------------------------
    def messages(self, now_s: float) -> list[Message]:
        """The messages to send to the summary service now.

        They need no reliable delivery: each one is repeated until it is answered.
        """
        with self._news:
            if self._attempt is None:
                return []
            due = [item for b in self._backlogs.values() for item in b.due(now_s)]
            self._forget_closed()
        messages = [self._pack(item) if isinstance(item, Batch) else item for item in due]
        return [message for message in messages if message is not None]

    def next_due_s(self, now_s: float) -> float | None:
        """When `messages` will next return something if nothing happens; None: never."""
        with self._news:
            times = [b.next_due_s(now_s) for b in self._backlogs.values()]
        return first_due_s(times)

    def on_connected(self) -> None:
        """Repeats unanswered messages on a new connection to the summary service."""
        with self._news:
            for backlog in self._backlogs.values():
                backlog.connected()

    def on_written(self, written: Written) -> None:
        """Handles the service's answer."""
        with self._news:
            for backlog in self._backlogs.values():
                if backlog.writer == written.writer:
                    backlog.on_written(written.through, written.error, self._clock.monotonic())
            self._drop_parcels(written)
            self._forget_closed()
            self._news.notify_all()

    def put_parcel(self, data: bytes) -> str:
        """Writes `data` to a file for GraphText and returns its path; OSError without room."""
        return str(self._write_parcel(parcel_name(f"{self._attempt}-graph", next(self._graphs)), data))

    # -- status ------------------------------------------------------------------------------------
    @property
    def dropped(self) -> int:
        """Number of dropped records: the service was away, or its disk full, for too long."""
        with self._news:
            return self._dropped_before + sum(b.dropped for b in self._backlogs.values())

    @property
    def error(self) -> str:
        """Why records do not reach a file, in the service's words; "" if they do."""
        with self._news:
            return next((b.error for b in self._backlogs.values() if b.error), "")

    # -- inside ------------------------------------------------------------------------------------
    def _forget_closed(self) -> None:
        for name in [n for n, b in self._backlogs.items() if b.is_closed]:
            self._dropped_before += self._backlogs.pop(name).dropped
            self._news.notify_all()

    def _pack(self, batch: Batch) -> Records | None:
        """Makes the message; None while there is no room for its one large record.

        The batch is then sent again later, as if the message had been lost.
        """
        inline = Records(batch.writer, batch.first, batch.records, {})
        if not batch.is_parcel:
            return inline
        parcel = self._parcel(batch)
        if parcel is not None:
            return Records(batch.writer, batch.first, (b"",), {batch.first: str(parcel)})
        return inline if len(batch.records[0]) <= INLINE_BYTES_MAX else None

    def _parcel(self, batch: Batch) -> Path | None:
        """Returns the file with the batch's one record, which an earlier message may have made."""
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
        """Writes the file to the first directory that has room; OSError if none has."""
        for directory in self._parcel_dirs[:-1]:
            with contextlib.suppress(OSError):
                return _write_whole(directory / name, data)
        return _write_whole(self._parcel_dirs[-1] / name, data)

    def _drop_parcels(self, written: Written) -> None:
        """Removes parcels that a killed service has left; a live service removes its own."""
        for key in [k for k in self._parcels if k[0] == written.writer and k[1] <= written.through]:
            with contextlib.suppress(OSError):
                self._parcels.pop(key).unlink(missing_ok=True)


def _write_whole(path: Path, data: bytes) -> Path:
    temporary = path.with_name(f"{path.name}.new")
    try:
        temporary.write_bytes(data)
        return temporary.rename(path)  # a kill before this leaves a file that the service removes for the next trainer
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
