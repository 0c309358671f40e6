"""Every relative link in a Markdown page leads to a file in the tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MADE = {"build", "runs"}
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in MADE for part in path.relative_to(ROOT).parts[:-1])
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`|^    .*$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """Return the anchors as GitHub makes them: lower case, spaces as hyphens, other signs dropped."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_relative_link_resolves(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), f"{page.name} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors_of(file), f"{page.name} links to {target}, and {file.name} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_source_file_named_in_a_page_exists(page: Path) -> None:
    for name in re.findall(
        r"`((?:procsv|ipc|services|tests|scripts|docs)/[\w./-]+\.(?:py|md|toml))`", page.read_text()
    ):
        assert (ROOT / name).exists(), f"{page.name} speaks of {name}, which is not there"


def test_no_source_and_no_page_refers_to_a_design_that_is_not_in_the_tree() -> None:
    sources = [
        file
        for room in ("procsv", "ipc", "services", "tests", "scripts")
        for file in (ROOT / room).rglob("*.py")
        if file != Path(__file__) and not any(parent.is_symlink() for parent in file.parents)
    ]
    reference = re.compile(r"\bdesign('s\b|: | \d)|\b(the|of) design\b|\(design\b")
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in (*sources, *PAGES)
        for line in file.read_text().splitlines()
        if reference.search(line)
    ]
    assert found == []
