"""The documents explain every exit code in the code."""

from __future__ import annotations

import re

from procsv.base import exit_codes
from tests.support.programs import ROOT


def test_the_documents_explain_every_exit_code_of_launch_and_of_programs() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \|", (ROOT / "docs" / "exit-codes.md").read_text(), re.MULTILINE)
    explained = {int(code) for row in rows for code in row.split(",")}
    launch = {exit_codes.DONE, exit_codes.USAGE, exit_codes.GAVE_UP, exit_codes.LOGDIR_UNUSABLE, exit_codes.RESUMABLE}
    assert launch | set(exit_codes.PERMANENT) <= explained
