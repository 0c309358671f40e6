"""Fits of many kinds under `procsv launch`, each killed at seeded batches: all end with the bits, and the History, of one that was not."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest

from scripts.soaking.keras_fits import kill_fit, train_alone
from tests.support.launched import environment

pytestmark = [pytest.mark.fault, pytest.mark.slow]

KINDS = (  # the others are in `scripts/soak --keras`
    "arrays",
    "repeat",
    "unknown size",
    "accumulated",
    "four steps a call",
    "unbuilt",
    "generator",
    "iterator",
    "own state",
    "two fits",
)


@pytest.fixture(scope="module")
def wanted() -> dict[str, str]:
    """What each kind ends with when nobody disturbs it."""
    return train_alone(KINDS, environment())


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_that_is_killed_ends_with_the_bits_of_one_that_was_not(
    kind: str, wanted: dict[str, str], tmp_path: Path
) -> None:
    rng = random.Random(zlib.crc32(kind.encode()))
    assert kill_fit(tmp_path / "run", kind, wanted[kind], rng, kills=2) == []
