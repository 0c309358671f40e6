"""`scripts/docs`: write the generated pages; `--check` reports stale ones, `--site` builds the
site.

To add a page, add a function that returns its text to PAGES.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from scripts.documenting.bounds_page import bounds_page
from scripts.documenting.examples_page import examples_page
from scripts.documenting.message_page import message_page
from scripts.documenting.schema_pages import schema_pages
from scripts.documenting.screenshots import take_screenshots
from scripts.documenting.site import build_site
from scripts.documenting.state_page import state_page

DOCS = Path(__file__).parents[2] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "bounds.md": bounds_page,
    "examples.md": examples_page,
    "messages.md": message_page,
    "state-machines.md": state_page,
    **schema_pages(),
}


def find_stale(docs: Path = DOCS) -> dict[Path, str]:
    """Return the pages in `docs` that do not match the code, with the text that they should have."""
    made = {docs / name: make() for name, make in PAGES.items()}
    return {path: text for path, text in made.items() if not path.exists() or path.read_text() != text}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/docs", description="Write the pages of docs/ made from the code.")
    parser.add_argument("--check", action="store_true", help="fail if a page is stale; write nothing")
    parser.add_argument("--site", action="store_true", help="build the site from them in build/site/html")
    parser.add_argument("--screenshots", action="store_true", help="take the pictures of docs/images; needs Chromium")
    options = parser.parse_args(argv)
    if options.site:
        return build_site()
    if options.screenshots:
        return take_screenshots()
    check = options.check
    stale = find_stale()
    for path, text in stale.items():
        if check:
            print(f"{path} is stale: run scripts/docs", file=sys.stderr)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
