"""Build the documentation as a site in build/site/html: `scripts/docs --site`.

The pages are the repository's, at the same places below build/site/pages, so that their links hold.
A file that a page links to and that a browser would not show is put into a page of its own. API.md
is made here, from the docstrings of the public names.
"""

from __future__ import annotations

import html.parser
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "site"
CONFIG = Path(__file__).with_name("mkdocs.yml")
MERMAID = "mermaid@11"  # the version that the theme expects
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "procsv/training/BUGS.md")
SHOWN = {".svg", ".png", ".md"}  # a browser shows the first two, and MkDocs makes pages of .md files
LANGUAGES = {".py": "python", ".json": "json", ".yaml": "yaml", ".service": "ini", ".sbatch": "bash"}
API = {
    "Graph mode": [
        *(
            "procsv.Supervisor",
            "procsv.MonitoredTrainingSession",
            "procsv.MonitoredSession",
            "procsv.SingularMonitoredSession",
        ),
        *("procsv.CheckpointSaverHook", "procsv.SummarySaverHook", "procsv.StepCounterHook", "procsv.Scaffold"),
        *("procsv.SessionCreator", "procsv.ChiefSessionCreator", "procsv.WorkerSessionCreator", "procsv.keep_position"),
    ],
    "Loops of TensorFlow 2": ["procsv.CheckpointManager"],
    "Keras": ["procsv.keras.BackupAndRestore", "procsv.keras.ModelCheckpoint"],
    "In any program": ["procsv.extend", "procsv.preempted", "procsv.install", "procsv.uninstall"],
    "Tests with pytest": ["procsv.testing.procsv_launch", "procsv.testing.Launch", "procsv.testing.run.Run"],
}

WITH_METHODS = {"procsv.Supervisor", "procsv.CheckpointManager", "procsv.testing.Launch", "procsv.testing.run.Run"}
NO_METHODS = "    options:\n      members: false\n"  # their other methods are TensorFlow's and Keras'


def api_page() -> str:
    text = (
        "# API reference\n\nWhat a program imports. The command line has [a page of its own](docs/command-line.md).\n"
    )
    for title, names in API.items():
        text += f"\n## {title}\n\n" + "".join(
            f"::: {name}\n{'' if name in WITH_METHODS else NO_METHODS}\n" for name in names
        )
    return text


def gather(pages: Path) -> None:
    """Copy the pages, and the files that they show or link to, below `pages`."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages / "docs", ignore=lambda folder, names: [n for n in names if is_linked_only(n)])
    for name in TOP:
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, pages / name)
    (pages / "API.md").write_text(api_page())
    shutil.copy(CONFIG.with_name("site.css"), pages)
    for page in sorted(pages.rglob("*.md")):
        page.write_text(adapt(page, pages))


def adapt(page: Path, pages: Path) -> str:
    """Return the text of a page with adapted links, and with what MkDocs reads differently from
    GitHub.
    """
    text = re.sub(r"(?<=\]\()[^)\s#:]+(?=\))", lambda link: page_of(link[0], page, pages), page.read_text())
    text = text.replace("```mermaid\nstate", "```mermaid\n%%{init: {'state': {'useMaxWidth': false}}}%%\nstate")
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace("\\|", "|"), text)  # in tables


def is_linked_only(name: str) -> bool:
    return Path(name).suffix not in {*SHOWN, ""} or name == "Dockerfile"


def page_of(link: str, page: Path, pages: Path) -> str:
    """Return where `link` in `page` leads on the site; make the page of a file that has none."""
    place = (page.parent / link).resolve()
    source = ROOT / place.relative_to(pages)
    if not source.is_file() or source.suffix in SHOWN:
        return link
    shown = place.with_name(f"{place.name}.md")
    shown.parent.mkdir(parents=True, exist_ok=True)
    shown.write_text(f"# {source.name}\n\n`````{LANGUAGES.get(source.suffix, 'text')}\n{source.read_text()}`````\n")
    return f"{link}.md"


class Links(html.parser.HTMLParser):
    """Collects the anchors of a page, its links, and what a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.targets.add(given["href"])
        elif tag in {"link", "script", "img", "iframe"}:
            self.loaded |= {given[name] for name in ("href", "src") if name in given}


def broken_links(site: Path) -> list[str]:
    """Return links of the site's pages that lead nowhere, and what pages load from other hosts."""
    pages = {path.resolve(): Links(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site.resolve())
        found += [f"{where} loads {url}" for url in sorted(page.loaded) if urllib.parse.urlsplit(url).netloc]
        for url in sorted(page.targets | page.loaded):
            parts = urllib.parse.urlsplit(url)
            if parts.scheme or parts.netloc or where.name == "404.html":  # its links are relative to the host's root
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = urllib.parse.unquote(parts.fragment)
            is_there = target.is_file() and (not anchor or target not in pages or anchor in pages[target].anchors)
            found += [] if is_there else [f"{where} links to {url}, which is not there"]
    return found


def draw_diagrams(site: Path) -> None:
    """Make pages with diagrams load Mermaid from the site; without npm the theme loads it from
    unpkg.com.
    """
    pages = [page for page in site.rglob("*.html") if 'class="mermaid"' in page.read_text()]
    script = BUILD / "package" / "dist" / "mermaid.min.js"
    if not script.exists():
        pack = ["npm", "pack", "--silent", MERMAID]
        try:
            packed = subprocess.run(pack, cwd=BUILD, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"browsers will load Mermaid from unpkg.com: {error}", file=sys.stderr)
            return
        subprocess.run(["tar", "-xf", packed, "package/dist/mermaid.min.js"], cwd=BUILD, check=True)
    shutil.copy(script, site / "assets" / script.name)
    for page in pages:
        up = "../" * (len(page.relative_to(site).parts) - 1)
        tag = f'<script src="{up}assets/{script.name}"></script></head>'
        page.write_text(page.read_text().replace("</head>", tag, 1))


def build_site() -> int:
    pages, site = BUILD / "pages", BUILD / "html"
    gather(pages)
    # Not --quiet, which also hides warnings from --strict.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(CONFIG)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, env=env, check=False, stderr=subprocess.PIPE, text=True)
    if built.returncode:
        print(built.stderr, end="", file=sys.stderr)
        return 1
    draw_diagrams(site)
    broken = broken_links(site)
    if broken:
        print("\n".join(broken), file=sys.stderr)
        return 1
    print(f"{site}/index.html; with search: python3 -m http.server -b 127.0.0.1 -d {site}")
    return 0
