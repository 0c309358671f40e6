"""A directory for slots and a pool of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from procsv.base.identity import TRAINER
from procsv.ipc.shm.slot_file import SlotPool
from tests.ipc.shm.snapshots import RUN


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    path = tmp_path / "shm"
    path.mkdir()
    return path


@pytest.fixture
def pool(shm: Path) -> Iterator[SlotPool]:
    pool = SlotPool(shm, RUN, TRAINER, 1)
    pool.reserve(1000)
    yield pool
    pool.close()
