"""Standard output of `procsv logs`.

Used by command.py.
"""

from __future__ import annotations

from collections import deque
from typing import BinaryIO

from procsv.base.terminal import OutputFilter


class Output:
    """A terminal is spared what it would obey; of a tail only the last lines are shown."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._filter = OutputFilter() if stream.isatty() else None
        self._lines: deque[bytes] | None = None  # of a tail
        self._rest = b""
        self._is_at_start = True  # of a line

    def write(self, data: bytes) -> None:
        if self._lines is not None:
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines += (line + b"\n" for line in lines)
        elif data:
            self._stream.write(self._filter.pass_on(data) if self._filter is not None else data)
            self._is_at_start = data.endswith(b"\n")

    def separate(self, line: bytes) -> None:
        """A line of ours, whatever the program has left unfinished."""
        is_at_start = not self._rest if self._lines is not None else self._is_at_start
        self.write((b"" if is_at_start else b"\n") + line)

    def begin_tail(self, lines: int | None) -> None:
        """Of what is written up to `end_tail` only the last lines are shown; None: all of it."""
        self._lines = None if lines is None else deque(maxlen=lines)

    def end_tail(self) -> None:
        if self._lines is None:
            return
        lines, self._lines = self._lines, None
        if self._rest and lines.maxlen:
            lines.append(self._rest)
        self.write(b"".join(lines))
        self._rest = b""

    def flush(self) -> None:
        self._stream.flush()
