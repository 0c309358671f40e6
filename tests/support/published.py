"""What procsv publishes, held to the types from which docs/schema/ is made."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec

from procsv.base.run.journal import read_journal
from procsv.report.published.journal_lines import JournalLine

FIELDS = {
    kind: {"event"} | {field.encode_name for field in msgspec.structs.fields(kind)} for kind in get_args(JournalLine)
}


def check_journal(logdir: Path) -> None:
    """Every line of a run's journal is of a published event, and has no field that is not published with it."""
    for entry in read_journal(logdir / "procsv" / "journal.jsonl"):
        line = msgspec.convert(entry, JournalLine)
        published = FIELDS[type(line)]
        assert set(entry) <= published, f"{entry} has more than {sorted(published)}"
