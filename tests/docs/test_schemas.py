"""docs/schema/ has every event that the code journals and every field of a status, and the journal page names them."""

from __future__ import annotations

import re
import typing

import msgspec
import pytest

from procsv.base.run.run_file import RunFile
from procsv.report.published.journal_lines import JournalLine
from procsv.report.published.line import Line
from procsv.report.published.status_object import StatusObject
from tests.docs.test_journal_page import PAGE, fields_of, journaled_events

KINDS: tuple[type[Line], ...] = typing.get_args(JournalLine)
PRIVATE = {"version", "program", "run_dir", "shm_dir", "started", "boot", "began_step"}


def test_every_field_of_run_json_that_status_shows_is_published() -> None:
    assert fields_of(RunFile) - PRIVATE - fields_of(StatusObject) == set()


def test_every_event_that_the_code_journals_is_published() -> None:
    assert {kind.__struct_config__.tag for kind in KINDS} == journaled_events()


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_the_journal_page_names_every_published_field(kind: type[Line]) -> None:
    event = kind.__struct_config__.tag
    row = re.search(rf"^\| `{event}` \|.*$", PAGE, re.MULTILINE)
    assert row is not None
    own = {field.encode_name for field in msgspec.structs.fields(kind)} - {"time", "role", "incarnation"}
    assert own - set(re.findall(r"`(\w+)`", row[0])) - set(re.findall(r"\w+", row[0])) == set()
