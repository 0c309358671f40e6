"""docs/journal-and-files.md has every event that the code journals, and every field of run.json and of a crash report."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from procsv.base.run.manifest import Manifest
from procsv.base.run.run_file import RunFile
from procsv.faults.plan import FAULT_EVENT, SKIPPED_EVENT
from procsv.watchdog.core.task.lifecycle import State
from procsv.watchdog.edge.run_records import CrashReport

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "journal-and-files.md").read_text()
JOURNALS = {"Journal", "Note", "note", "append"}  # who makes a journal line; `append` of a list has one argument


def journaled_events() -> set[str]:
    return {FAULT_EVENT, SKIPPED_EVENT} | {
        event for room in ("procsv", "ipc", "services") for file in _sources(ROOT / room) for event in _events_in(file)
    }


def _sources(room: Path) -> Iterator[Path]:
    return (file for file in room.rglob("*.py") if not any(parent.is_symlink() for parent in file.parents))


def _events_in(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called not in JOURNALS or (called == "append" and len(node.args) < 3):
            continue
        for choice in ast.walk(node.args[0]):  # "spawned" if … else "service_restarted"
            if isinstance(choice, ast.Constant) and isinstance(choice.value, str):
                yield choice.value


def described_events() -> set[str]:
    table = PAGE.partition("## The journal")[2].partition("## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


def test_the_page_has_exactly_the_events_that_the_code_journals() -> None:
    assert described_events() == journaled_events()


def fields_of(struct: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct)}


def words_of(heading: str) -> set[str]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"`(\w+)`", section))


def test_the_page_has_every_field_of_run_json() -> None:
    assert fields_of(RunFile) - words_of("run.json") == set()


def test_the_page_has_every_state_of_a_trainer() -> None:
    assert {state.word for state in State} - words_of("run.json") == set()


def test_the_page_has_every_field_of_a_crash_report() -> None:
    assert fields_of(CrashReport) - words_of("A crash report") == set()


def test_the_page_has_every_field_of_a_manifest() -> None:
    assert fields_of(Manifest) - words_of("A manifest") == set()
