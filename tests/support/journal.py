"""Make journal entries for tests from the fields that matter, and read journals back as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from procsv.base.identity import TaskId
from procsv.base.journal.entries import Entry
from procsv.base.journal.file import Journal
from procsv.base.journal.file import read_journal as read_lines
from procsv.base.journal.line import KINDS, decode_line


def an_entry(event: str, **fields: Any) -> Entry:
    """Make an entry of that event. A required field that is not given is empty: 0, "" or None."""
    kind = KINDS[event]
    needed = {
        field.encode_name: _nothing(inspect.type_info(field.type))
        for field in msgspec.structs.fields(kind)
        if field.required
    }
    return msgspec.convert({"event": event, **needed, **fields}, kind)


def _nothing(kind: inspect.Type) -> object:
    match kind:
        case inspect.Metadata(type=inner):
            return _nothing(inner)
        case inspect.UnionType():
            return None
        case inspect.IntType(ge=least):
            return max(least or 0, 0)
        case inspect.FloatType():
            return 0.0
        case inspect.BoolType():
            return False
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.StrType():
            return ""
        case _:
            return ()


def append(journal: Journal, event: str, task: TaskId, incarnation: int, **fields: Any) -> None:
    journal.append(an_entry(event, **fields), task, incarnation)


def check_journal(logdir: Path) -> None:
    """Check that every whole line of a run's journal can be read and names a known event."""
    path = logdir / "procsv" / "journal.jsonl"
    for data in path.read_bytes().splitlines() if path.exists() else ():
        if _is_whole(data):
            assert decode_line(data).entry.event in KINDS, data


def _is_whole(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def read_journal(path: Path) -> list[dict[str, Any]]:
    return [line.as_dict() for line in read_lines(path)]
