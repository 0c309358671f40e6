"""End of a process group, but for multiprocessing's resource trackers.

A tracker is a child that unlinks the named semaphores and the shared memory of its program, once everybody is dead who has the
other end of its pipe.  Killed together with the others, it would leave them in /dev/shm, a crash after another.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil

from procsv.base.system.process_state import process_state

TRACKER_S_MAX = 2.0  # it takes milliseconds; a process that only looks like one is killed then
ROUNDS_MAX = 20  # of a group that forks on while it is killed
_TRACKER = re.compile(rb"from [\w.]*resource_tracker import main")


def is_tracker(pid: int) -> bool:
    """Whether it is one, of multiprocessing or of a library that has its own."""
    with contextlib.suppress(OSError):
        return _TRACKER.search(Path(f"/proc/{pid}/cmdline").read_bytes()) is not None
    return False


def kill_group(group: int) -> None:
    """SIGKILL to all of it but trackers.  ProcessLookupError if there is none, PermissionError if it is somebody else's.

    To trackers as well where there is no descriptor left to look with.
    """
    try:
        if any(map(is_tracker, _members(group))) and _kill_others(group):
            return
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
    os.killpg(group, signal.SIGKILL)


def _kill_others(group: int) -> bool:
    """Kills all but trackers; whether none of them is left."""
    for _ in range(ROUNDS_MAX):
        others = [pid for pid in _members(group) if not is_tracker(pid)]
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                _kill(pid, group)
        if not others:
            return True
    return False


def _members(group: int) -> Iterator[int]:
    """Those that live: a zombie needs nothing any more."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                pid = int(entry.name)
                if os.getpgid(pid) == group and process_state(pid) not in ("Z", "X"):
                    yield pid


def _kill(pid: int, group: int) -> None:
    fd = os.pidfd_open(pid)
    try:
        if os.getpgid(pid) == group:  # else the pid is another's by now
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)
