"""The pages of docs/ that are made from the code."""

from __future__ import annotations

import shutil
from pathlib import Path

from scripts.documenting.__main__ import DOCS, PAGES, find_stale


def test_every_generated_page_is_what_the_code_says() -> None:
    assert not find_stale(), "run scripts/docs"


def test_a_page_that_is_stale_or_missing_is_found(tmp_path: Path) -> None:
    for name in PAGES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(DOCS / name, tmp_path / name)
    assert not find_stale(tmp_path)
    (tmp_path / "messages.md").write_text("old")
    assert list(find_stale(tmp_path)) == [tmp_path / "messages.md"]
    (tmp_path / "messages.md").unlink()
    assert list(find_stale(tmp_path)) == [tmp_path / "messages.md"]
