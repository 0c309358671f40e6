"""A thread wakes a member's loop by a descriptor that is readable while it is set, and no longer."""

from __future__ import annotations

import select
import sys
import threading
from collections.abc import Iterator

import pytest

from procsv.ipc.bulk.fetch import WakeFd

RINGS, THREADS, ROUNDS = 5, 2, 300


@pytest.fixture
def wake_fd() -> Iterator[WakeFd]:
    wake_fd = WakeFd()
    yield wake_fd
    wake_fd.close()


def is_ready(wake_fd: WakeFd) -> bool:
    return bool(select.select([wake_fd.fd], [], [], 0.0)[0])


def test_the_descriptor_is_ready_from_its_setting_to_its_clearing(wake_fd: WakeFd) -> None:
    wake_fd.clear()
    assert not is_ready(wake_fd)
    for _ in range(3):
        wake_fd.wake()
        wake_fd.wake()
        assert is_ready(wake_fd)
        wake_fd.clear()
        assert not is_ready(wake_fd)


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Let threads switch after every few instructions."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("quick_switches")
def test_threads_that_set_it_continuously_leave_no_wake_up_uncleared(wake_fd: WakeFd) -> None:
    def ring() -> None:
        for _ in range(RINGS):
            wake_fd.wake()

    for _ in range(ROUNDS):
        threads = [threading.Thread(target=ring) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            wake_fd.clear()
        for thread in threads:
            thread.join()
        wake_fd.clear()
        assert not is_ready(wake_fd)
