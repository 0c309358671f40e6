"""Write the streams' event files, and record how far each of them is written.

This is the disk side of the summary service.  process.py calls it from one thread to carry out the
decisions of core.py.  It never answers a message and never decides which records are new.

A stream is one event writer of an attempt.  Its *position* is a small file in the runtime directory
that says how far the stream is written.  With the position, each record appears exactly once,
wherever a SIGKILL hits:

    1  for a new event file, write a position that names it, with offset 0; then create the file
    2  write records after the offset
    3  overwrite the position in one small write: the last record's number, and the new offset
    4  acknowledge the records

Killed after 1 or 2: the next process counts the complete records after the offset as written, and
cuts off an incomplete one.  Killed after 3: the sender has no acknowledgement, so it sends the
records again, and learns that they are written.  Killed after 4: nothing is left to do.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from procsv.base.encoding import decode_sealed, encode_json, seal
from procsv.base.errors import PeerError
from procsv.base.identity import TaskId
from procsv.base.run.paths import RunPaths
from procsv.base.system.atomic_file import replace_file
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.messaging.summary_messages import PARCEL_GLOB, Written, parcel_writer
from procsv.services.summary.core import attempt_of
from procsv.services.summary.event_file import EventFile, new_name

declare("summary.after_write")

_numbers = itertools.count()  # numbers this process's files; part of their names


class StreamPosition(msgspec.Struct, frozen=True):
    """The position file: record `through` of stream `writer` ends at `offset` of `file`."""

    run: str  # the id of the launch
    writer: str
    logdir: str
    suffix: str
    file: str
    through: int
    offset: int


class Stream(msgspec.Struct):
    """One stream and its event file.  `through` is the number of the last record written."""

    paths: RunPaths
    run: str
    writer: str
    logdir: Path
    suffix: str
    through: int = 0
    _file: EventFile | None = None
    _position_fd: int = -1

    def append_records(self, records: Sequence[bytes | Path], wall_s: float) -> None:
        """Writes the records that follow `through`, then the position.

        If this raises OSError, the event file and `through` are as they were before.
        """
        file = self._ready_file(wall_s)
        before, through = file.offset, self.through
        try:
            file.append_records(records, wall_s)
            # Killed here: the next process finds the records after the position's offset, and counts them as written.
            failpoint("summary.after_write")
            self.through += len(records)
            self._write_position(file)
        except BaseException:
            self.through = through
            # Killed before this: as above, the next process keeps the complete records.
            file.cut_back(before)
            raise

    def _ready_file(self, wall_s: float) -> EventFile:
        if self._file is not None and (trouble := self._file.trouble()):
            say(f"{self._file.path} {trouble}; continuing in a new file")
            self._file.close()
            self._file = None
        if self._file is None:
            self._file = self._new_file(wall_s)
        elif not self._position_is_in_place():
            self._start_position(self._file.path, self._file.offset)
        return self._file

    def _new_file(self, wall_s: float) -> EventFile:
        self.logdir.mkdir(parents=True, exist_ok=True)
        while True:
            path = self.logdir / new_name(self.logdir, wall_s, next(_numbers), self.suffix)
            self._start_position(path)
            # Killed here: the position names a file that does not exist yet.
            # The name contains host and pid.  If another machine has the same host name, the file may exist already.
            with contextlib.suppress(FileExistsError):
                return EventFile(path, is_new=True)

    # -- the position ------------------------------------------------------------------------------------------
    @property
    def _position_path(self) -> Path:
        return self.paths.event_position(self.writer)

    def _position(self, path: Path, offset: int) -> bytes:
        here = StreamPosition(
            run=self.run,
            writer=self.writer,
            logdir=str(self.logdir),
            suffix=self.suffix,
            file=str(path),
            through=self.through,
            offset=offset,
        )
        return seal(encode_json(here))

    def _start_position(self, path: Path, offset: int = 0) -> None:
        # Killed here: either the old position or the new one is in place.
        replace_file(self._position_path, self._position(path, offset), durable=False)
        self._close_position()
        self._position_fd = os.open(self._position_path, os.O_WRONLY | os.O_CLOEXEC)

    def _write_position(self, file: EventFile) -> None:
        """Overwrites the position in place.

        Its numbers grow with each append that succeeds, so the new text is never shorter than the
        text in the file.
        """
        data = self._position(file.path, file.offset)
        # A kill leaves the old or the new text.
        if os.pwrite(self._position_fd, data, 0) != len(data):
            # What is left may be unreadable.  Killed before the next append: the sender opens the stream again, and a
            # new event file begins.  The next append replaces the position file.
            self._close_position()
            raise OSError(f"short write to {self._position_path}")

    def _position_is_in_place(self) -> bool:
        """Whether the position is open here and still has its name.

        Something may have removed it, such as a clean-up of temporary files.
        """
        return self._position_fd >= 0 and os.fstat(self._position_fd).st_nlink > 0

    def _close_position(self) -> None:
        if self._position_fd >= 0:
            os.close(self._position_fd)
            self._position_fd = -1

    # -- taking over from a dead process, and ending ---------------------------------------------------------
    def take_over(self, position: StreamPosition) -> None:
        """Repairs the end of the file that `position` names, and continues this file.

        If the file is missing or too short, the next record creates a new one.  OSError if the file
        cannot be opened or repaired.
        """
        path = Path(position.file)
        self.through = position.through
        with contextlib.suppress(FileNotFoundError):
            if position.offset and path.stat().st_size < position.offset:
                say(f"{path} is shorter than what was written to it; continuing in a new file")
                return
            if position.offset == 0 and not path.exists():
                return  # the file was named but never created; the next record creates a new one
            file = EventFile(path, position.offset)
            self.through += file.repair()
            self._file = file
            self._start_position(path, file.offset)

    def close_file(self, forget: bool = True) -> None:
        """Syncs and closes the file; with `forget`, also removes the position."""
        if self._file is not None:
            try:
                if trouble := self._file.trouble():
                    say(f"{self._file.path} {trouble}")
                else:
                    self._file.sync()
            except OSError as error:
                say(f"{self._file.path}: {error}")
            self._file.close()
            self._file = None
        self._close_position()
        if forget:
            # Killed before this: the next process takes the stream over again.
            self._position_path.unlink(missing_ok=True)


def say(text: str) -> None:
    """Prints a line to the service's log."""
    print(f"procsv summary: {text}", file=sys.stderr, flush=True)


class StreamStore:
    """The streams by name: open ones, and ones that an earlier process of this service left."""

    def __init__(self, paths: RunPaths, run: str) -> None:
        self._paths = paths
        self._run = run
        self._streams: dict[str, Stream] = {}
        self._trouble = ""  # the last reported disk error
        self._unrepaired = self._left_behind()  # for each stream: its position, and why it cannot continue yet

    # -- what another process left -------------------------------------------------------------------------
    def _left_behind(self) -> dict[str, tuple[StreamPosition, str]]:
        found: dict[str, tuple[StreamPosition, str]] = {}
        for path in sorted(self._paths.run_dir.glob("events.*.pos")):
            try:
                position = decode_sealed(path.read_bytes(), StreamPosition)
                attempt_of(position.writer)
            except (OSError, msgspec.DecodeError, PeerError) as error:
                # The stream counts as unknown, so its sender opens it again.  Killed here: the next process does the same.
                say(f"{path} is not a position file: {error}")
                with contextlib.suppress(OSError):
                    path.unlink()
            else:
                found[position.writer] = (position, "the event file is being repaired")
        return found

    def repair(self) -> list[tuple[str, int]]:
        """Repairs the event files that an earlier process of this service left.

        Returns (name, through) of each stream that can continue.  A file that cannot be repaired
        now stays for the next call.  A launch usually begins by removing the positions of earlier
        launches from the runtime directory.  If one is still there, its stream is repaired and
        closed: its trainer is dead, and a new trainer may use the same name.
        """
        repaired: list[tuple[str, int]] = []
        for writer, (position, trouble) in list(self._unrepaired.items()):
            stream = Stream(
                paths=self._paths, run=position.run, writer=writer, logdir=Path(position.logdir), suffix=position.suffix
            )
            try:
                stream.take_over(position)
            except OSError as error:
                if str(error) != trouble:
                    say(f"cannot repair {position.file}: {error}; trying again")
                self._unrepaired[writer] = (position, str(error))
                continue
            del self._unrepaired[writer]
            if position.run == self._run:
                self._streams[writer] = stream
                repaired.append((writer, stream.through))
            else:
                stream.close_file()
        return repaired

    def refuse_while_unrepaired(self, writer: str) -> Written | None:
        """Returns a refusal if this stream is not yet repaired; otherwise None.

        The refusal accepts no records.  It does not say that the stream is unknown, because the
        sender would then open it again.
        """
        if writer not in self._unrepaired:
            return None
        position, error = self._unrepaired[writer]
        return Written(writer, position.through if position.run == self._run else 0, error)

    def purge(self, task: TaskId, incarnation: int) -> None:
        """Removes the parcels of this task's attempts before `incarnation`.

        A parcel is a file that holds one large record (core.py).  An attempt leaves it behind if it
        dies after it has written the parcel and before it has sent the message that names it.
        """
        for directory in (self._paths.shm_dir, self._paths.run_dir):
            for path in directory.glob(PARCEL_GLOB):
                with contextlib.suppress(OSError, PeerError):
                    owner, number = attempt_of(parcel_writer(path.name))
                    if owner == task and number < incarnation:
                        # Killed here: the next process removes the rest when `incarnation` sends its next message.
                        path.unlink()

    # -- what core.py decides ------------------------------------------------------------------------------
    def open_stream(self, writer: str, logdir: str, suffix: str) -> None:
        self._streams[writer] = Stream(
            paths=self._paths, run=self._run, writer=writer, logdir=Path(logdir), suffix=suffix
        )

    def append_records(self, writer: str, records: Sequence[bytes | Path], wall_s: float) -> str:
        """Writes the records and the position; returns "", or why they could not be written."""
        stream = self._streams[writer]
        try:
            stream.append_records(records, wall_s)
        except OSError as error:
            trouble = f"{stream.logdir}: {error}"
            if trouble != self._trouble:
                say(f"{trouble}; keeping the records and retrying")
            self._trouble = trouble
            return trouble
        if self._trouble:
            say("writing event records works again")
            self._trouble = ""
        return ""

    def end_stream(self, writer: str) -> None:
        self._streams.pop(writer).close_file()

    def close(self) -> None:
        """Closes the files, and leaves the positions of open streams for the next process."""
        for stream in self._streams.values():
            stream.close_file(forget=False)
        self._streams.clear()
