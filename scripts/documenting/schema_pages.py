"""docs/schema/: JSON schemas of what procsv publishes, from the types that it is published by."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import msgspec

from procsv.report.published.journal_lines import JournalLine
from procsv.report.published.report_object import ReportObject
from procsv.report.published.status_object import StatusObject

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_PUBLISHED: dict[str, tuple[Any, str]] = {
    "journal-line.json": (JournalLine, "A line of journal.jsonl"),
    "status.json": (StatusObject, "procsv status --json"),
    "report.json": (ReportObject, "procsv report --json"),
}


def schema_pages() -> dict[str, Callable[[], str]]:
    return {f"schema/{name}": functools.partial(_schema, *what) for name, what in _PUBLISHED.items()}


def _schema(kind: object, title: str) -> str:
    schema = {"$schema": DRAFT, "title": title, **msgspec.json.schema(kind)}
    return json.dumps(schema, indent=1) + "\n"
