"""The event file of one stream, and its position: the disk side of the summary service.

Called by stream_store.py, which does what core.py decides.  Never answers anybody and never decides what is news.

The position, a small file in the run directory, makes each record appear exactly once, whatever line a SIGKILL hits:

    1  the position names a file that does not exist yet, at offset 0
    2  records are written behind that offset
    3  the position is overwritten, in one small write: (through, offset)
    4  the records are acknowledged

Killed after 1 or 2: the next process takes over the whole records behind the offset and cuts off a torn
one.  Killed after 3: the sender sends everything again, and learns that it is written.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from procsv.base.json_data import seal
from procsv.base.run.paths import RunPaths
from procsv.base.system.atomic_file import replace_file
from procsv.base.system.failpoints import declare, failpoint
from procsv.services.summary.event_file import EventFile, new_name

declare("summary.after_write")

_numbers = itertools.count()  # in a file's name: this process's n-th


class Position(msgspec.Struct, frozen=True):
    """The position file: record `through` of stream `writer` ends at `offset` of `file`."""

    run: str
    writer: str
    logdir: str
    suffix: str
    file: str
    through: int
    offset: int


class Stream(msgspec.Struct):
    """One stream: its event file, and the last record in it."""

    paths: RunPaths
    run: str
    writer: str
    logdir: Path
    suffix: str
    through: int = 0
    _file: EventFile | None = None
    _position_fd: int = -1

    def append(self, records: Sequence[bytes | Path], wall_s: float) -> None:
        """Writes records through + 1, …; they and the position are written when it returns.

        OSError passes through; the file and `through` are then as before.
        """
        file = self._ready_file(wall_s)
        before, through = file.offset, self.through
        try:
            file.append(records, wall_s)
            failpoint("summary.after_write")
            self.through += len(records)
            self._write_position(file)
        except BaseException:
            self.through = through
            file.cut_back(before)
            raise

    def _ready_file(self, wall_s: float) -> EventFile:
        if self._file is not None and (trouble := self._file.trouble()):
            say(f"{self._file.path} {trouble}; going on in a new file")
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
            # Killed here: the position names a file to be created.
            with contextlib.suppress(FileExistsError):  # by another machine of this host name, with our pid there
                return EventFile(path, is_new=True)

    # -- the position ------------------------------------------------------------------------------------------
    @property
    def _position_path(self) -> Path:
        return self.paths.event_position(self.writer)

    def _position(self, path: Path, offset: int) -> bytes:
        here = Position(self.run, self.writer, str(self.logdir), self.suffix, str(path), self.through, offset)
        return seal(msgspec.json.encode(here))

    def _start_position(self, path: Path, offset: int = 0) -> None:
        replace_file(self._position_path, self._position(path, offset), durable=False)
        self._close_position()
        self._position_fd = os.open(self._position_path, os.O_WRONLY | os.O_CLOEXEC)

    def _write_position(self, file: EventFile) -> None:
        """Overwrites the position.  Its numbers only grow, so a shorter text never replaces a longer one."""
        data = self._position(file.path, file.offset)
        if os.pwrite(self._position_fd, data, 0) != len(data):
            raise OSError(f"short write to {self._position_path}")

    def _position_is_in_place(self) -> bool:
        """False if a sweeper of temporary files has taken it."""
        return self._position_fd >= 0 and os.fstat(self._position_fd).st_nlink > 0

    def _close_position(self) -> None:
        if self._position_fd >= 0:
            os.close(self._position_fd)
            self._position_fd = -1

    # -- taking over from a dead process, and ending ---------------------------------------------------------
    def take_over(self, position: Position) -> None:
        """Goes on in the file that `position` names, repaired.  OSError if it cannot be opened or repaired."""
        path = Path(position.file)
        self.through = position.through
        with contextlib.suppress(FileNotFoundError):
            if position.offset and path.stat().st_size < position.offset:
                say(f"{path} is shorter than what was written to it; going on in a new file")
                return
            if position.offset == 0 and not path.exists():
                return  # named, never created; the next record creates a new one
            file = EventFile(path, position.offset)
            self.through += file.repair()
            self._file = file
            self._start_position(path, file.offset)

    def close_file(self, forget: bool = True) -> None:
        """Closes the file, its bytes on the disk; with `forget`, removes the position."""
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
    """A line for the service's log."""
    print(f"procsv summary: {text}", file=sys.stderr, flush=True)
