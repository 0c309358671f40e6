"""docs/schema/: the JSON schemas of what procsv publishes, generated from its types."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import msgspec

from procsv.base.journal.entries import AnyEntry
from procsv.base.journal.line import KINDS, Head
from procsv.report.report_object import ReportObject
from procsv.report.status_object import StatusObject

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_PUBLISHED: dict[str, tuple[Any, str]] = {
    "status.json": (StatusObject, "procsv status --json"),
    "report.json": (ReportObject, "procsv report --json"),
}


def schema_pages() -> dict[str, Callable[[], str]]:
    pages = {f"schema/{name}": functools.partial(_schema, *what) for name, what in _PUBLISHED.items()}
    return {"schema/journal-line.json": _journal_line, **pages}


def _schema(kind: object, title: str) -> str:
    return _page(msgspec.json.schema(kind), title)


def _journal_line() -> str:
    """Return the schema of every event, with the fields that all lines have."""
    schema = msgspec.json.schema(AnyEntry)
    head = msgspec.json.schema(Head)["$defs"]["Head"]
    for kind in KINDS.values():
        own = schema["$defs"][kind.__name__]
        own["properties"] = head["properties"] | own["properties"]
        own["required"] = [*head["required"], *(name for name in own["required"] if name != "event")]
    return _page(schema, "A line of journal.jsonl")


def _page(schema: dict[str, Any], title: str) -> str:
    return json.dumps({"$schema": DRAFT, "title": title, **schema}, indent=1) + "\n"
