"""A snapshotter for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from procsv.training.snapshots import snapshot_queue
from tests.training.snapshots.snapshotter_world import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(snapshot_queue, "PATIENCE_S", 0.05)
    monkeypatch.setattr(snapshot_queue, "STOP_PATIENCE_S", 0.1)
    world = World()
    yield world
    world.backend.may_copy.set()
    world.snapshotter.close()
    assert not world.lock.wrong, "boundary.lock was asked for with the snapshotter's lock held"
