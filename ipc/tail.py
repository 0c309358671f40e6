"""The end of a log, for people who are told that its process has ended."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

BYTES_READ_MAX = 2**18


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines that say something; a progress line that rewrites itself counts as its last state."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - BYTES_READ_MAX))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return list(deque((line for line in lines if line.strip()), maxlen=count))
