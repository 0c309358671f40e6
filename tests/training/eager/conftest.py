"""Gives each test its own shared memory for snapshots."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def shm() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="procsv-test-"))
    yield directory
    shutil.rmtree(directory)
