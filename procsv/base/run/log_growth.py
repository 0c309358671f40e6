"""Growth of a run's logs: which size each of them had at which time, a line of JSON for each.

Written by the watchdog (watchdog/edge/log_growth.py) to `procsv/logs/growth.jsonl`, read by `procsv logs --all`: a log
holds what its process has printed and no times, so nothing else tells in which order two processes have printed.  A
convenience: a reader passes over what is damaged, and does without what is not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from procsv.base.json_data import decode_json, encode_json

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Mark(msgspec.Struct, frozen=True):
    """One line: all that this log held then."""

    time: _Seconds  # Unix
    log: str  # its name
    file: int  # its inode: another one after a rotation
    size: _Size


def encode_marks(marks: list[Mark]) -> bytes:
    return b"".join(encode_json(mark) + b"\n" for mark in marks)


def read_marks(path: Path) -> list[Mark]:
    """In the order in which they were written; none if they cannot be read."""
    try:
        return [mark for _, mark in _marked_lines(path.read_bytes())]
    except OSError:
        return []


def _marked_lines(data: bytes) -> Iterator[tuple[bytes, Mark]]:
    for line in data.split(b"\n"):
        try:
            yield line + b"\n", decode_json(line, Mark)
        except msgspec.DecodeError:
            continue  # damaged, or torn by a kill or a full disk


def thin_out(data: bytes, there: Container[str]) -> bytes:
    """Fewer marks: in the older half those of logs that are not `there` go, and every second one of each other log.

    A log's first mark stays, which says when its process has begun, and so does the last one of that half.  Where all
    that spares little, the older half goes.
    """
    middle = data.find(b"\n", len(data) // 2) + 1 or len(data)
    older = [(line, (mark.log, mark.file)) for line, mark in _marked_lines(data[:middle]) if mark.log in there]
    last = {key: number for number, (_, key) in enumerate(older)}
    seen, kept = Counter[tuple[str, int]](), list[bytes]()
    for number, (line, key) in enumerate(older):
        seen[key] += 1
        if seen[key] % 2 or last[key] == number:
            kept.append(line)
    thinned = b"".join((*kept, data[middle:]))
    return thinned if len(thinned) <= len(data) * 7 // 8 else data[middle:]
