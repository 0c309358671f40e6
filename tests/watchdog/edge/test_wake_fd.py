"""The bell by which a thread wakes a member's loop: its descriptor is ready while it has rung, and no longer."""

from __future__ import annotations

import select
import sys
import threading
from collections.abc import Iterator

import pytest

from procsv.ipc.bulk.fetch import WakeFd

RINGS, THREADS, ROUNDS = 5, 2, 300


@pytest.fixture
def bell() -> Iterator[WakeFd]:
    bell = WakeFd()
    yield bell
    bell.close()


def is_ready(bell: WakeFd) -> bool:
    return bool(select.select([bell.fd], [], [], 0.0)[0])


def test_it_is_ready_from_its_ring_until_that_is_taken_back(bell: WakeFd) -> None:
    bell.take_back()
    assert not is_ready(bell)
    for _ in range(3):
        bell.ring()
        bell.ring()
        assert is_ready(bell)
        bell.take_back()
        assert not is_ready(bell)


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns after every few instructions."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("quick_switches")
def test_threads_that_ring_all_the_time_leave_nothing_that_is_never_taken_back(bell: WakeFd) -> None:
    def ring() -> None:
        for _ in range(RINGS):
            bell.ring()

    for _ in range(ROUNDS):
        threads = [threading.Thread(target=ring) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            bell.take_back()
        for thread in threads:
            thread.join()
        bell.take_back()
        assert not is_ready(bell)
