"""Write the streams' event files, and record how far each of them is written.

This is the disk side of the summary service.  process.py calls it from one thread to carry out the
decisions of core.py.  It never answers a message and never decides which records are new.

A stream is one event writer of an attempt.  Its *position* is a small file in the run directory
that says how far the stream is written.  With it, each record appears exactly once, wherever a
SIGKILL hits:

    1  the position names a file that does not exist yet, at offset 0
    2  records are written after that offset
    3  the position is overwritten, in one small write: (through, offset)
    4  the records are acknowledged

Killed after 1 or 2: the next process counts the whole records after the offset as written and cuts
off a torn one.  Killed after 3: the sender sends the records again and learns that they are
written.
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

    run: str
    writer: str
    logdir: str
    suffix: str
    file: str
    through: int
    offset: int


class Stream(msgspec.Struct):
    """One stream: its event file, and in `through` the number of the last record written."""

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

        If this raises OSError, file and `through` stay as they were.
        """
        file = self._ready_file(wall_s)
        before, through = file.offset, self.through
        try:
            file.append_records(records, wall_s)
            failpoint("summary.after_write")
            self.through += len(records)
            self._write_position(file)
        except BaseException:
            self.through = through
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
            # The file exists already if a machine with our host name has a process with our pid.
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
        replace_file(self._position_path, self._position(path, offset), durable=False)
        self._close_position()
        self._position_fd = os.open(self._position_path, os.O_WRONLY | os.O_CLOEXEC)

    def _write_position(self, file: EventFile) -> None:
        """Overwrites the position in place.

        The numbers in it only grow, so the new text is never shorter than the old.
        """
        data = self._position(file.path, file.offset)
        if os.pwrite(self._position_fd, data, 0) != len(data):
            raise OSError(f"short write to {self._position_path}")

    def _position_is_in_place(self) -> bool:
        """Returns False if something has removed the position, such as a clean-up of temporary
        files.
        """
        return self._position_fd >= 0 and os.fstat(self._position_fd).st_nlink > 0

    def _close_position(self) -> None:
        if self._position_fd >= 0:
            os.close(self._position_fd)
            self._position_fd = -1

    # -- taking over from a dead process, and ending ---------------------------------------------------------
    def take_over(self, position: StreamPosition) -> None:
        """Continues the file that `position` names, after repairing its end.

        If that file is missing or too short, the next record creates a new one.  OSError if the
        file cannot be opened or repaired.
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
            self._position_path.unlink(missing_ok=True)


def say(text: str) -> None:
    """Prints a line to the service's log."""
    print(f"procsv summary: {text}", file=sys.stderr, flush=True)


class StreamStore:
    """The streams by name: open ones, and ones that a killed process left behind."""

    def __init__(self, paths: RunPaths, run: str) -> None:
        self._paths = paths
        self._run = run
        self._streams: dict[str, Stream] = {}
        self._trouble = ""  # the last reported disk error
        self._unrepaired = self._left_behind()  # name -> its position, and why it cannot be continued yet

    # -- what another process left -------------------------------------------------------------------------
    def _left_behind(self) -> dict[str, tuple[StreamPosition, str]]:
        found: dict[str, tuple[StreamPosition, str]] = {}
        for path in sorted(self._paths.run_dir.glob("events.*.pos")):
            try:
                position = decode_sealed(path.read_bytes(), StreamPosition)
                attempt_of(position.writer)
            except (OSError, msgspec.DecodeError, PeerError) as error:
                # The stream counts as unknown, so its sender opens it again.
                say(f"{path} is not a position file: {error}")
                with contextlib.suppress(OSError):
                    path.unlink()
            else:
                found[position.writer] = (position, "the event file is being repaired")
        return found

    def repair(self) -> list[tuple[str, int]]:
        """Repairs the files that a killed process left.

        Returns (name, through) of each stream that can continue.  A stream of another launch is
        repaired and closed: its trainer is dead, and a new trainer may use the same name.  A file
        that cannot be repaired now stays for the next call.
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

    def not_now(self, writer: str) -> Written | None:
        """Returns the answer for a stream that is still to be repaired, or None for any other.

        The answer accepts no records.  It does not say that the stream is unknown, because the
        sender would then open it again.
        """
        if writer not in self._unrepaired:
            return None
        position, error = self._unrepaired[writer]
        return Written(writer, position.through if position.run == self._run else 0, error)

    def purge(self, task: TaskId, incarnation: int) -> None:
        """Removes the parcels of this task's attempts before `incarnation`.

        An attempt that dies before it has sent a parcel leaves it behind.
        """
        for directory in (self._paths.shm_dir, self._paths.run_dir):
            for path in directory.glob(PARCEL_GLOB):
                with contextlib.suppress(OSError, PeerError):
                    owner, number = attempt_of(parcel_writer(path.name))
                    if owner == task and number < incarnation:
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
                say(f"{trouble}; the records are kept and tried again")
            self._trouble = trouble
            return trouble
        if self._trouble:
            say("records are written to their files again")
            self._trouble = ""
        return ""

    def end_stream(self, writer: str) -> None:
        self._streams.pop(writer).close_file()

    def close(self) -> None:
        """Closes the files.  Open streams keep their positions for the next process."""
        for stream in self._streams.values():
            stream.close_file(forget=False)
        self._streams.clear()
