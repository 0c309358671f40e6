"""The seeds of every test run, and the further ones of the long run."""

from __future__ import annotations

import pytest


def seeds(count: int, block: int = 1) -> list[object]:
    """Return the first of each block. A quarter of them, and at least one, run on each change."""
    first = range(0, count, block)
    short = max(1, len(first) // 4)
    return [pytest.param(seed, marks=[pytest.mark.long] if n >= short else []) for n, seed in enumerate(first)]
