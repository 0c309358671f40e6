"""docs/bounds.md: what grows in a run, how far, and who prunes it."""

from __future__ import annotations

from collections.abc import Iterable

from scripts.soaking.bounds import ELSEWHERE, FILES, MEMORY, Row

_HEAD = """\
# What grows, and how far

Made from `scripts/soaking/bounds.py` by `scripts/docs`; do not edit. `scripts/soak` looks at every row while it kills the processes of a run: memory rows by the resident memory of the
process that they are in. What says "you" is never deleted by procsv.
"""


def bounds_page() -> str:
    parts = {"In the logdir": FILES, "Elsewhere": ELSEWHERE, "In memory": MEMORY}
    return _HEAD + "".join(f"\n## {title}\n\n{_table(rows)}" for title, rows in parts.items())


def _table(rows: Iterable[Row]) -> str:
    lines = ["| what | bound | pruned by |", "|---|---|---|"]
    lines += [f"| {row.what} | {row.bound} | {row.pruned_by} |" for row in rows]
    return "\n".join(lines) + "\n"
