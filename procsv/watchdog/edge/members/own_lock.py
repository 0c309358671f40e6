"""The lock of this launch's own directory, as the coordinator is told of it.  Used by member.py; never takes a lock."""

from __future__ import annotations

import os

from procsv.base.system.locks import DirectoryLock
from procsv.base.system.processes import boot_id
from procsv.ipc.messaging.member_messages import LaunchLock


def describe_lock(lock: DirectoryLock, wall_s: float) -> LaunchLock | None:
    """`lock`, which was taken just now; None where the filesystem has none that could be relied on."""
    if not lock.is_firm or lock.fd < 0:
        return None
    there = os.fstat(lock.fd)
    return LaunchLock(f"{boot_id()}:{there.st_dev}:{there.st_ino}", wall_s)
