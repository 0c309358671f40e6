"""docs/bounds.md: what grows in a run, how far, and who prunes it."""

from __future__ import annotations

from collections.abc import Iterable

from scripts.soaking.bounds import ELSEWHERE, FILES, MEMORY, Row

_HEAD = """\
# What grows, and how far

`scripts/docs` makes this page from `scripts/soaking/bounds.py`; do not edit. `scripts/soak` checks
every row while it kills the processes of a run, and a memory row by the resident memory of its
process. procsv never deletes what "you" prune. The [glossary](glossary.md) explains the
terms.
"""


def bounds_page() -> str:
    parts = {"In the logdir": FILES, "Elsewhere": ELSEWHERE, "In memory": MEMORY}
    return _HEAD + "".join(f"\n## {title}\n\n{_table(rows)}" for title, rows in parts.items())


def _table(rows: Iterable[Row]) -> str:
    lines = ["| what | bound | pruned by |", "|---|---|---|"]
    lines += [f"| {row.what} | {row.bound} | {row.pruned_by} |" for row in rows]
    return "\n".join(lines) + "\n"
