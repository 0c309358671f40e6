"""The event file of one stream, and its position: the disk side of the summary service.

Called by stream_store.py, which does what core.py decides.  Never answers anybody and never decides what is news.

The note (the position, in the run directory) is what makes "once each" survive SIGKILL at any line:

    1  the note names a file that does not exist yet, at offset 0
    2  records are written behind the noted offset
    3  the note is written over, in one small write: (through, offset)
    4  the records are acknowledged

Killed after 1 or 2: the next process takes over the whole records behind the noted offset and cuts off a torn
one.  Killed after 3: the sender says it all again, and is told that it is written.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from procsv.base.atomic_file import replace_file
from procsv.base.failpoints import declare, failpoint
from procsv.base.run.paths import RunPaths
from procsv.services.summary.event_file import EventFile, new_name

declare("summary.after_write")

_numbers = itertools.count()  # in a file's name: this process's n-th


class Position(msgspec.Struct, frozen=True):
    """The note: record `through` of stream `writer` ends at `offset` of `file`."""

    run: str
    writer: str
    logdir: str
    suffix: str
    file: str
    through: int
    offset: int


@dataclass(slots=True)
class Stream:
    """One stream: where its records go, and how far they have got."""

    paths: RunPaths
    run: str
    writer: str
    logdir: Path
    suffix: str
    through: int = 0
    _file: EventFile | None = None
    _note_fd: int = -1

    def append(self, records: Sequence[bytes | Path], wall_s: float) -> None:
        """Writes records through + 1, …; they are in the file and noted when it returns.

        OSError passes through; the file and `through` are then as before.
        """
        file = self._ready_file(wall_s)
        before, through = file.offset, self.through
        try:
            file.append(records, wall_s)
            failpoint("summary.after_write")
            self.through += len(records)
            self._note(file)
        except BaseException:
            self.through = through
            file.cut_back(before)
            raise

    def _ready_file(self, wall_s: float) -> EventFile:
        if self._file is not None and self._file.is_deleted():
            say(f"{self._file.path} was deleted; going on in a new file")
            self._file.close()
            self._file = None
        if self._file is None:
            self.logdir.mkdir(parents=True, exist_ok=True)
            path = self.logdir / new_name(self.logdir, wall_s, next(_numbers), self.suffix)
            self._begin_note(path)
            self._file = EventFile(path)  # killed before this line: the note names a file to be made
        elif not self._note_is_in_place():
            self._begin_note(self._file.path, self._file.offset)
        return self._file

    # -- the note ------------------------------------------------------------------------------------------
    @property
    def _note_path(self) -> Path:
        return self.paths.event_position(self.writer)

    def _position(self, path: Path, offset: int) -> bytes:
        here = Position(self.run, self.writer, str(self.logdir), self.suffix, str(path), self.through, offset)
        return msgspec.json.encode(here)

    def _begin_note(self, path: Path, offset: int = 0) -> None:
        replace_file(self._note_path, self._position(path, offset), durable=False)
        self._drop_note_fd()
        self._note_fd = os.open(self._note_path, os.O_WRONLY | os.O_CLOEXEC)

    def _note(self, file: EventFile) -> None:
        """Overwrites the note.  Its numbers only grow, so a shorter text never lies over a longer one."""
        data = self._position(file.path, file.offset)
        if os.pwrite(self._note_fd, data, 0) != len(data):
            raise OSError(f"short write to {self._note_path}")

    def _note_is_in_place(self) -> bool:
        """False if a sweeper of temporary files has taken it."""
        return self._note_fd >= 0 and os.fstat(self._note_fd).st_nlink > 0

    def _drop_note_fd(self) -> None:
        if self._note_fd >= 0:
            os.close(self._note_fd)
            self._note_fd = -1

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
                return  # noted, never made; the next record makes a new one
            file = EventFile(path, position.offset)
            self.through += file.repair()
            self._file = file
            self._begin_note(path, file.offset)

    def end(self, forget: bool = True) -> None:
        """Closes the file, its bytes on the disk; with `forget`, removes the note."""
        if self._file is not None:
            try:
                self._file.sync()
            except OSError as error:
                say(f"{self._file.path}: {error}")
            self._file.close()
            self._file = None
        self._drop_note_fd()
        if forget:
            self._note_path.unlink(missing_ok=True)


def say(text: str) -> None:
    """A line for the service's log."""
    print(f"procsv summary: {text}", file=sys.stderr, flush=True)
