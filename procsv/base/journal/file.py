"""Write and read the journal of a logdir: one JSON object a line, appended and never rewritten.

At BYTES_MAX the writer renames the file, replacing the file that it renamed before, and begins a
new one.  Readers read both files as one journal.

The watchdog writes it.  A trainer also writes to it before it does a planned fault to itself.
Every process may read it.  The last line may be torn by a power failure, or by a kill during the
write, because a killed write may stop between two pages.  Readers skip such a line, and the next
writer ends it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from procsv.base.clock import Clock
from procsv.base.encoding import encode_json
from procsv.base.identity import PROGRAM_ROLES, TaskId
from procsv.base.journal.entries import Adopted, Entry, RunStarted, Spawned
from procsv.base.journal.line import Line, decode_line
from procsv.base.run.logs import older_part, rotate_if_large
from procsv.base.run.records import make_record_dir, open_record
from procsv.base.system import stale
from procsv.base.system.data_file import LARGE_BYTES_MAX, read_data
from procsv.base.units import show_count

BYTES_MAX = 2**26  # some 400,000 lines: years of a run, or days of one that only fails
COPY_BYTES = 2**20


class Journal:
    """Appends lines.  Each line is one write, so the lines of two writers never mix."""

    def __init__(self, path: Path, clock: Clock, say: Callable[[str], None] = lambda text: None) -> None:
        """`say`: called to report written lines that were lost."""
        make_record_dir(path.parent)
        self.path = path
        self._clock, self._say = clock, say
        self._fd, self._end = -1, 0  # `_end`: the end of the file after our last write
        self._open_file()

    def _open_file(self) -> None:
        before, self._fd = self._fd, open_record(self.path, os.O_RDWR | os.O_APPEND)
        was_stale = before >= 0 and stale.stat_open(before) is None
        if before >= 0:
            if not was_stale:
                _copy_if_deleted(before, self._fd)
            stale.close(before)
        self._is_torn = False
        size = os.fstat(self._fd).st_size
        if was_stale and size < self._end:
            self._say(f"{self.path}: its filesystem has lost the last {show_count(self._end - size, 'byte')} of it")
        self._end = size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            self._write_data(b"\n")

    def _is_in_place(self) -> bool:
        """Returns False if our file is not at `path`, or our descriptor is stale.

        Returns True while the journal's directory is missing: the open file stays in use, wherever
        it is.
        """
        there = stale.stat_open(self._fd)
        try:
            return there is not None and os.path.samestat(there, self.path.stat())
        except FileNotFoundError:
            return not self.path.parent.is_dir()

    def append(self, entry: Entry, task: TaskId, incarnation: int) -> Line:
        """Writes a line and returns it."""
        line = Line(round(self._clock.wall(), 6), str(task), incarnation, entry)
        data = encode_json(line.as_dict())
        if not self._is_in_place():
            self._open_file()
        elif self._end > BYTES_MAX:
            rotate_if_large(self.path, BYTES_MAX)
            # After a kill here, the next writer begins the new file.
            self._open_file()
        ending = b"\n" if self._is_torn else b""  # ends the previous line, which a full disk cut short
        try:
            is_whole = self._write_data(ending + data + b"\n")
        except OSError as error:
            if not stale.is_stale(error):
                raise
            self._open_file()  # it became stale after the check
            is_whole = self._write_data(data + b"\n")
        self._is_torn = not is_whole
        return line

    def _write_data(self, data: bytes) -> bool:
        """Writes data; returns whether all of it was written."""
        written = os.write(self._fd, data)
        self._end = os.lseek(self._fd, 0, os.SEEK_CUR)
        return written == len(data)

    def close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # the file cannot be checked now
                if stale.stat_open(self._fd) is None:
                    self._open_file()  # reports what is lost
            stale.close(self._fd)
            self._fd = -1


def _copy_if_deleted(before: int, new: int) -> None:
    """Copies a deleted journal into the new file.

    Some programs delete their directory when they start.
    """
    if os.fstat(before).st_nlink == 0 and os.fstat(new).st_size == 0:
        at = 0
        while data := os.pread(before, COPY_BYTES, at):
            # After a kill or failure here, the copy reads as a journal with a torn last line.
            at += os.write(new, data)


def read_journal(path: Path, damaged: list[bytes] | None = None) -> Iterator[Line]:
    """Yields the journal's lines, oldest first; nothing if there is no journal.

    Skips torn or damaged lines and adds them to `damaged`.
    """
    for part in (older_part(path), path):
        yield from _decode(_read_file(part), damaged)


def _read_file(path: Path) -> bytes:
    """Returns the file's contents; empty if it does not exist."""
    try:
        return stale.try_again(lambda: read_data(path, LARGE_BYTES_MAX))
    except FileNotFoundError:
        return b""


def _decode(data: bytes, damaged: list[bytes] | None = None) -> Iterator[Line]:
    for line in data.splitlines():
        try:
            yield decode_line(line)
        except msgspec.DecodeError:
            if damaged is not None:
                damaged.append(line)


class JournalReader:
    """Reads a journal repeatedly but decodes each line only once; otherwise like read_journal."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known, self._lines = b"", list[Line]()  # whole lines, and the same decoded

    def lines(self) -> list[Line]:
        """Returns all lines so far, oldest first, in a new list."""
        data = _read_file(self._path)
        if not self._known or not data.startswith(self._known):  # the file was replaced
            self._known, self._lines = b"", [*_decode(_read_file(older_part(self._path)))]
        start, end = len(self._known), data.rfind(b"\n") + 1
        if end > start:
            self._lines += _decode(data[start:end])
            self._known = data[:end]
        return [*self._lines, *_decode(data[len(self._known) :])]


def read_program_pids(path: Path, of_last_launch: bool = False) -> set[int]:
    """Returns the pids that the run's programs have had; none if there is no journal.

    `of_last_launch`: only those that its last launch has started or adopted.
    """
    pids = set[int]()
    for line in read_journal(path):
        if isinstance(line.entry, RunStarted) and of_last_launch:
            pids.clear()
        elif isinstance(line.entry, Spawned | Adopted) and line.role.partition(".")[0] in PROGRAM_ROLES:
            pids.add(line.entry.pid)
    return pids


def read_spawns_since(path: Path, task: TaskId, incarnation: int) -> dict[int, float]:
    """Returns when attempts of `task` were started: pid -> Unix seconds.

    Only attempts from `incarnation` on are in it.
    """
    return {
        line.entry.pid: line.time
        for line in reversed([*read_journal(path)])  # reversed, so that the first start with a pid is kept
        if isinstance(line.entry, Spawned | Adopted) and line.role == str(task) and line.incarnation >= incarnation
    }
