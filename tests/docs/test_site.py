"""`scripts/docs --site` prepares the site's pages so that MkDocs can build them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import yaml

import procsv
import procsv.testing
from scripts.documenting import site

ROOT = Path(__file__).parents[2]


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, which names Python functions."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def pages_in(menu: Any) -> set[str]:
    if isinstance(menu, str):
        return {menu}
    return set().union(*(pages_in(item) for item in (menu.values() if isinstance(menu, dict) else menu)))


def test_the_menu_has_every_page_of_docs() -> None:
    menu = pages_in(yaml.load(site.CONFIG.read_text(), Loader)["nav"])
    assert {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")} == {
        page for page in menu if page.startswith("docs/")
    }


def test_the_api_reference_has_every_public_name() -> None:
    text = (ROOT / "procsv" / "keras.py").read_text()  # reading it imports no Keras
    keras = re.findall(r'"(\w+)"', text[text.index("__all__") :])
    public = {f"procsv.{name}" for name in procsv.__all__ if name != "__version__"}
    public |= {f"procsv.keras.{name}" for name in keras} | {f"procsv.testing.{name}" for name in procsv.testing.__all__}
    assert public <= {name for names in site.API.values() for name in names}


def test_pages_are_laid_out_with_a_page_for_each_linked_file(tmp_path: Path) -> None:
    site.gather(tmp_path)
    examples = (tmp_path / "docs" / "examples.md").read_text()
    assert "(../procsv/examples/digits.py.md)" in examples
    assert "```python\n" in (tmp_path / "procsv" / "examples" / "digits.py.md").read_text()
    assert "auto|S|0" in (tmp_path / "docs" / "command-line.md").read_text()


def test_blocks_in_lists_are_indented_by_four_and_followed_by_an_empty_line_as_mkdocs_needs() -> None:
    block = re.compile(r"^ {1,3}(?:```|[*-] |\d+\. ).*|(?<=\n\n) {1,3}\S.*|(?<=\n\n)(?: {4}.+\n)+[*-] .*", re.MULTILINE)
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in site.TOP)]
    assert [(page.name, found) for page in pages for found in block.findall(page.read_text())] == []


def test_dead_links_and_files_from_other_hosts_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.html").write_text('<p id="here">')
    (tmp_path / "index.html").write_text(
        '<a href="there.html#here"><a href="there.html#gone"><a href="gone.html"><a href="https://example.org/">'
        '<script src="https://example.org/x.js"></script>'
    )
    assert site.broken_links(tmp_path) == [
        "index.html loads https://example.org/x.js",
        "index.html links to gone.html, which is not there",
        "index.html links to there.html#gone, which is not there",
    ]


def test_the_page_for_pypi_has_no_relative_link_and_no_local_picture() -> None:
    without_relative_links = runpy.run_path(str(ROOT / "setup.py"))["without_relative_links"]
    text = "See [the `page`](docs/x.md#y), [a site](https://example.org) and\n\n![a picture](docs/x.png)\n\nmore.\n"
    assert without_relative_links(text) == "See the `page`, [a site](https://example.org) and\n\nmore.\n"
    made = without_relative_links((ROOT / "README.md").read_text() + (ROOT / "CHANGELOG.md").read_text())
    assert not re.findall(r"\]\((?!https?:)[^)]*\)", made)
