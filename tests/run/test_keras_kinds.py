"""Fits of many kinds, killed at seeded batches, end with the bits and History of an undisturbed fit."""

from __future__ import annotations

import random
import signal
import zlib
from pathlib import Path

import pytest

from procsv.base import exit_codes
from scripts.soaking.keras_fits import kill_fit, train_alone
from tests.support import keras_kinds
from tests.support.launched import launched

pytestmark = [pytest.mark.fault, pytest.mark.long]

KINDS = {  # how often each is killed; `scripts/soak --keras` has the other kinds
    "arrays": 2,
    "unknown size": 1,
    "accumulated": 1,
    "four steps a call": 1,
    "own step": 2,
    "generator": 1,
    "iterator": 1,
    "own state": 1,
    "own variables": 2,
    "another model next": 2,
    "mirrored": 1,
    "mirrored mixed precision": 1,
    "mirrored ema": 1,
    "one device": 1,
    "shuffled validation": 1,
}


@pytest.fixture(scope="module")
def wanted() -> dict[str, str]:
    """Return what an undisturbed fit of each kind ends with."""
    return train_alone(list(KINDS))


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_fit_ends_with_the_bits_of_an_undisturbed_one(
    kind: str, wanted: dict[str, str], tmp_path: Path
) -> None:
    rng = random.Random(zlib.crc32(kind.encode()))
    assert kill_fit(tmp_path / "run", kind, wanted[kind], rng, KINDS[kind]) == []


def test_the_replicas_of_a_mirrored_fit_resume_from_a_checkpoint_on_disk(
    wanted: dict[str, str], tmp_path: Path
) -> None:
    program = (str(Path(keras_kinds.__file__)), "mirrored")
    with launched(tmp_path / "run", *program, STANDS_AT="50") as run:
        run.wait_step(30)
        run.kill("watchdog", signal.SIGTERM)
        assert run.wait_end() == exit_codes.RESUMABLE
    with launched(tmp_path / "run", *program) as run:
        run.assert_completed()
        assert f"mirrored: {wanted['mirrored']}" in run.said().splitlines()
        assert run.events("recovered")[-1]["source"] == "checkpoint"
