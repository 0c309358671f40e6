"""The summary service's event files and notes over a disk in memory.

It follows services/summary/stream_file.py: a note names the file before it is created, records are
written after the noted offset, the note is rewritten, and only then is anything acknowledged. A
process that takes over counts the whole records after the note and cuts off a torn one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from procsv.base.identity import TaskId
from procsv.ipc.messaging.summary_messages import Written
from procsv.services.summary.stream_file import StreamStore
from tests.simulation.model.disk import Killed, SimDisk

TORN_RECORD = b"torn"
VERSION = b"version"


@dataclass(frozen=True, slots=True)
class Note:
    """A streams.Position."""

    run: str
    writer: str
    file: str
    through: int
    offset: int


@dataclass(slots=True)
class EventDisk:
    """Event files (in the logdir) and notes (in the run directory, which a power loss clears)."""

    disk: SimDisk
    files: dict[str, list[bytes]] = field(default_factory=dict)
    notes: dict[str, Note] = field(default_factory=dict)
    on_append: Callable[[str], None] = lambda file: None

    def write(self, file: str, record: bytes) -> None:
        """Write one record. A process killed during it leaves half."""
        is_last = self.disk.kill_in == 0
        with contextlib.suppress(Killed):
            self.disk.operation(True)
        if is_last:
            self.files[file].append(TORN_RECORD)
            raise Killed
        self.files[file].append(record)

    def note(self, note: Note) -> None:
        kept, self.disk.trouble = self.disk.trouble, ""  # the run directory is not on the disk
        try:
            self.disk.operation(False)
        finally:
            self.disk.trouble = kept
        self.notes[note.writer] = note

    def lose_power(self) -> None:
        for records in self.files.values():
            del records[self.disk.rng.randrange(len(records) + 1) :]
        self.notes.clear()


class SimStreamStore(StreamStore):
    """All streams of a run."""

    def __init__(self, events: EventDisk, run: str) -> None:
        self._events, self._run_id = events, run
        self._open: dict[str, Note] = {}
        self._left: dict[str, tuple[Note, str]] = {name: (note, "") for name, note in events.notes.items()}

    def repair(self) -> list[tuple[str, int]]:
        repaired = []
        for writer, (note, _) in list(self._left.items()):
            try:
                through = self._take_over(note)
            except OSError as error:
                self._left[writer] = (note, str(error))
                continue
            del self._left[writer]
            if note.run == self._run_id:
                repaired.append((writer, through))
            else:
                self._events.notes.pop(writer, None)
        return repaired

    def _take_over(self, note: Note) -> int:
        records = self._events.files.get(note.file)
        if records is None:
            self._open[note.writer] = replace(note, file="")
            return note.through
        self._events.disk.operation(False)
        whole = note.offset
        while whole < len(records) and records[whole] != TORN_RECORD:
            whole += 1
        count = max(0, whole - note.offset - (note.offset == 0))
        del records[whole:]
        repaired = replace(note, through=note.through + count, offset=whole)
        self._events.note(repaired)
        if note.run == self._run_id:
            self._open[note.writer] = repaired
        return repaired.through

    def refuse_while_unrepaired(self, writer: str) -> Written | None:
        if writer not in self._left:
            return None
        note, error = self._left[writer]
        return Written(writer, note.through if note.run == self._run_id else 0, error)

    def purge(self, task: TaskId, incarnation: int) -> None:
        """Do nothing: there are no parcels."""

    def open_stream(self, writer: str, logdir: str, suffix: str) -> None:
        self._open[writer] = Note(self._run_id, writer, "", 0, 0)

    def append_records(self, writer: str, records: Sequence[bytes | Path], wall_s: float) -> str:
        try:
            self._append(writer, records)
        except OSError as error:
            return str(error)
        self._events.on_append(self._open[writer].file)
        return ""

    def _append(self, writer: str, records: Sequence[bytes | Path]) -> None:
        note = self._open[writer]
        if not note.file:
            note = replace(note, file=f"events.{len(self._events.files) + 1:06d}.{writer}")
            self._events.note(note)
            self._events.disk.operation(True)
            self._events.files[note.file] = []
            self._open[writer] = note
        there = self._events.files[note.file]
        del there[note.offset :]
        try:
            for record in [VERSION, *records] if not note.offset else records:
                assert isinstance(record, bytes), "the model sends no parcels"
                self._events.write(note.file, record)
        except OSError:
            del there[note.offset :]
            raise
        done = replace(note, through=note.through + len(records), offset=len(there))
        self._events.note(done)
        self._open[writer] = done

    def end_stream(self, writer: str) -> None:
        self._open.pop(writer)
        self._events.notes.pop(writer, None)

    def close(self) -> None:
        self._open.clear()
