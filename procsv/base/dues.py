"""Of several moments, some of which may never come, the first."""

from __future__ import annotations

from collections.abc import Iterable


def first_due_s(dues_s: Iterable[float | None]) -> float | None:
    """The earliest of `dues_s`, in seconds of one clock; None: none of them ever comes.  Loops ask in every turn."""
    first_s: float | None = None
    for due_s in dues_s:
        if due_s is not None and (first_s is None or due_s < first_s):
            first_s = due_s
    return first_s
