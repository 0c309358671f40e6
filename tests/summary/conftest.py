"""Runs and trainers that end with the test, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.summary.real_service import Run, Trainer


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.close()


@pytest.fixture
def trainer(run: Run) -> Iterator[Trainer]:
    trainer = Trainer(run)
    yield trainer
    trainer.close()
