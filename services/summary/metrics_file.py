"""Metrics of the run, in an event file of their own: `<logdir>/procsv/events.out.tfevents.*`.

Used by process.py, from one thread.  The folder is its own because TensorBoard reads the files of a folder one after the
other: beside a trainer's, neither would be followed.  A metric that cannot be written is dropped; the next one replaces it.
"""

from __future__ import annotations

import struct
from pathlib import Path

from procsv.ipc.messaging.messages import RunMetrics
from procsv.services.summary.event_file import EventFile, new_name
from procsv.services.summary.stream_file import say


class FigureFile:
    """Made when there is something to write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: EventFile | None = None
        self._trouble = ""

    def write(self, figures: RunMetrics, wall_s: float) -> None:
        """One record; `wall_s` names the file."""
        try:
            if self._file is None:
                self._file = EventFile(self._directory / new_name(self._directory, wall_s, 0, ".figures"))
            self._file.append([encode(figures)], wall_s)
            self._trouble = ""
        except OSError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                say(f"figures of the run are not written: {error}")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def encode(figures: RunMetrics) -> bytes:
    """A serialized Event: wall_time = 1, step = 2, summary = 5 {value = 1 {tag = 1, simple_value = 2}}."""
    summary = b"".join(
        _field(1, _field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)) for tag, value in figures.values.items()
    )
    step = b"\x10" + _varint(max(figures.step, 0))
    return b"\x09" + struct.pack("<d", figures.wall_s) + step + _field(5, summary)


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
