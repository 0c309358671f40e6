"""The generated pages of docs/ match the code."""

from __future__ import annotations

import shutil
from pathlib import Path

from scripts.documenting.__main__ import DOCS, PAGES, find_stale


def test_every_generated_page_matches_the_code() -> None:
    assert not find_stale(), "run scripts/docs"


def test_a_stale_or_missing_page_is_found(tmp_path: Path) -> None:
    for name in PAGES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(DOCS / name, tmp_path / name)
    assert not find_stale(tmp_path)
    (tmp_path / "messages.md").write_text("old")
    assert list(find_stale(tmp_path)) == [tmp_path / "messages.md"]
    (tmp_path / "messages.md").unlink()
    assert list(find_stale(tmp_path)) == [tmp_path / "messages.md"]
