"""Run seeds until a broken invariant is reported, to show that breaking it is noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.model.world import Violation

SEEDS_MAX = 20


def assert_reported(name: str, go: Callable[[int], object], seeds: int = SEEDS_MAX) -> None:
    """Run `go` with seeds until one reports an invariant whose name begins with `name`."""
    reported = ""
    for seed in range(seeds):
        try:
            go(seed)
        except Violation as violation:
            reported = str(violation)
        if reported.startswith(name):
            return
    pytest.fail(f"{name} was never reported; the last report: {reported!r}")
