"""Fits of many kinds under `procsv launch`, each killed at seeded batches: all end with the bits, and the History, of one that was not."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.support import keras_kinds
from tests.support.launched import NEWS_S_MAX, environment, launched
from tests.support.programs import ROOT

pytestmark = [pytest.mark.fault, pytest.mark.slow]

PROGRAM = str(Path(keras_kinds.__file__))
KINDS = (
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
QUICK = ("--backoff", "0.1s..1s", "--snapshot-secs", "0.05")


@pytest.fixture(scope="module")
def wanted() -> dict[str, str]:
    """What each kind ends with when nobody disturbs it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.keras_kinds", "alone", *KINDS],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=NEWS_S_MAX,
        check=True,
    )
    return dict(line.split(": ") for line in done.stdout.splitlines())


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_that_is_killed_ends_with_the_bits_of_one_that_was_not(
    kind: str, wanted: dict[str, str], tmp_path: Path
) -> None:
    steps = sorted(random.Random(zlib.crc32(kind.encode())).sample(range(5, 80), 2))
    faults = [word for step in steps for word in ("--fault", f"kill trainer at step {step}")]
    with launched(tmp_path / "run", *QUICK, *faults, PROGRAM, kind) as run:
        run.assert_completed()
        assert f"{kind}: {wanted[kind]}" in run.said().splitlines(), run.summary()
        assert len(run.events("exited", role="trainer")) == 3
        assert "memory" in [entry["source"] for entry in run.events("recovered")]
