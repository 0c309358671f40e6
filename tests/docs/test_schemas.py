"""docs/schema/ describes every field of a status, and the journal page every field of an event."""

from __future__ import annotations

import re

import pytest

from procsv.base.journal.line import KINDS
from procsv.base.run.run_file import RunFile
from procsv.report.status_object import StatusObject
from tests.docs.test_journal_page import PAGE, fields_of

PRIVATE = {"version", "program", "run_dir", "shm_dir", "started", "boot", "began_step", "written_at"}


def test_every_field_of_run_json_that_status_shows_is_in_the_schema() -> None:
    assert fields_of(RunFile) - PRIVATE - fields_of(StatusObject) == set()


@pytest.mark.parametrize("event", KINDS)
def test_the_journal_page_names_every_field_of_an_event(event: str) -> None:
    row = re.search(rf"^\| `{event}` \|.*$", PAGE, re.MULTILINE)
    assert row is not None
    assert fields_of(KINDS[event]) - set(re.findall(r"`(\w+)`", row[0])) - set(re.findall(r"\w+", row[0])) == set()
