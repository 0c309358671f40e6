"""The script that takes the documentation's pictures works up to the point where it needs a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.documenting import screenshots

WRITTEN = (
    "procsv: training at step 1\r\n▸ step 9 · 20/s\r\x1b[J\x1b[31mprocsv: trainer 1 was killed\x1b[0m\r\n▸ starting again"
    "\r\x1b[Jprocsv: training again at step 9\r\n▸ step 9\r\x1b[J▸ step 19 · 3 s left · saved\r\x1b[J▸ step 29 · 2 s left"
)


def test_the_terminal_is_drawn_as_after_the_first_restart_without_erased_lines() -> None:
    drawn = screenshots.draw_terminal(WRITTEN).replace("&#160;", " ")
    for shown in (
        "procsv launch",
        "training at step 1",
        "trainer 1 was killed",
        "training again",
        "step 19 · 3 s left · saved",
    ):
        assert shown in drawn
    for erased in ("starting again", "20/s", "2 s left", "http://", "https://"):
        assert erased not in drawn.replace("http://www.w3.org/2000/svg", "").replace("https://www.textualize.io", "")


def test_without_chromium_the_script_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert screenshots.take_screenshots() == 1
    assert "Chromium" in capsys.readouterr().err


def test_each_picture_is_used_on_a_page_and_all_are_small() -> None:
    pictures = list(screenshots.IMAGES.iterdir())
    root = screenshots.ROOT
    shown = "".join(page.read_text() for page in (root / "README.md", *(root / "docs").glob("*.md")))
    assert [path.name for path in pictures if f"images/{path.name})" not in shown] == []
    assert sum(path.stat().st_size for path in pictures) < 300 * 1024
