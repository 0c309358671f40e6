"""docs/journal-and-files.md describes every journal event and every field of run.json and of a crash report."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from procsv.base.journal.line import KINDS
from procsv.base.run.manifest import Manifest
from procsv.base.run.run_file import RunFile
from procsv.watchdog.core.task.lifecycle import TaskState
from procsv.watchdog.edge.run_records import CrashReport

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "journal-and-files.md").read_text()


def described_events() -> set[str]:
    table = PAGE.partition("## The journal")[2].partition("## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


def test_the_page_has_exactly_the_existing_events() -> None:
    assert described_events() == KINDS.keys()


def fields_of(struct: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct)}


def words_of(heading: str) -> set[str]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"`(\w+)`", section))


def test_the_page_has_every_field_of_run_json() -> None:
    assert fields_of(RunFile) - words_of("run.json") == set()


def test_the_page_has_every_state_of_a_trainer() -> None:
    assert {state.word for state in TaskState} - words_of("run.json") == set()


def test_the_page_has_every_field_of_a_crash_report() -> None:
    assert fields_of(CrashReport) - words_of("A crash report") == set()


def test_the_page_has_every_field_of_a_manifest() -> None:
    assert fields_of(Manifest) - words_of("A manifest") == set()
