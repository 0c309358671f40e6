"""The end of a log, for people who are told that its process has ended."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from procsv.base.run.log_follower import older_part

BYTES_READ_MAX = 2**18


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines that say something; a progress line that rewrites itself counts as its last state."""
    data = _end_of(log, BYTES_READ_MAX)
    if len(data) < BYTES_READ_MAX:  # just rotated, perhaps
        data = _end_of(older_part(log), BYTES_READ_MAX - len(data)) + data
    text = data.decode(errors="replace")
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return list(deque((line for line in lines if line.strip()), maxlen=count))


def _end_of(log: Path, bytes_max: int) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - bytes_max))
            return file.read()
    except OSError:
        return b""
