"""A running process takes on a fault at its next moment and for the requested time."""

import errno
from pathlib import Path

import pytest

from procsv.base.system import disk
from procsv.base.system.failpoints import FailpointRaised, failpoint
from procsv.faults.pending import Injected
from procsv.ipc.messaging.watchdog_messages import Inject


def test_a_full_disk_lasts_for_the_requested_time(tmp_path: Path) -> None:
    """The failpoint disk.full, armed by a message."""
    injected = Injected()
    injected.inject(Inject("fill", 5.0), 100.0)
    with pytest.raises(OSError, match="No space") as full:
        disk.create(tmp_path / "file")
    assert full.value.errno == errno.ENOSPC
    injected.end_expired(104.9)
    with pytest.raises(OSError, match="No space"):
        disk.create(tmp_path / "file")
    injected.end_expired(105.0)
    disk.write_all(fd := disk.create(tmp_path / "file"), b"there is room")
    disk.fsync(fd)
    assert (tmp_path / "file").read_bytes() == b"there is room"


def test_messages_are_dropped_for_the_requested_time() -> None:
    """The failpoint channel.receive, armed by a message."""
    injected = Injected()
    assert not failpoint("channel.receive")
    injected.inject(Inject("drop", 2.0), 100.0)
    assert failpoint("channel.receive")
    injected.end_expired(102.0)
    assert not failpoint("channel.receive")


def test_a_fault_at_a_moment_waits_for_it_and_happens_once() -> None:
    told = list[str]()
    injected = Injected(lambda: told.append("waiting"))
    injected.inject(Inject("raise", 0.0), 100.0)
    assert (injected.is_waiting, told) == (True, ["waiting"])
    with pytest.raises(FailpointRaised):
        injected.moment()
    assert not injected.is_waiting
    injected.moment()
    injected.inject(Inject("exit", 3.0), 100.0)
    with pytest.raises(SystemExit) as left:
        injected.moment()
    assert left.value.code == 3
