"""What procsv publishes, held to the types from which docs/schema/ is made."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from procsv.base.run.journal import read_journal
from procsv.report.published.journal_lines import JournalLine


def check_journal(logdir: Path) -> None:
    """Every line of a run's journal is of a published event, and has no field that is not published with it."""
    for entry in read_journal(logdir / "procsv" / "journal.jsonl"):
        line = msgspec.convert(entry, JournalLine)
        published = _fields(type(line))
        assert set(entry) <= published, f"{entry} has more than {sorted(published)}"


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)} | {"event"}
