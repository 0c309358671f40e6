"""Imports that leave the cores to a training: pauses that grow with the wait for a core.

Used by the standby while it imports.  Nothing here outlasts it: an ordinary user could not lower a nice value again, and threads
that libraries start while they are imported would keep it for the life of the trainer to come.  So the work is done in the
main thread at its usual priority, and yields by itself where others want the cores: after each slice it rests for a multiple
of the time that it had to wait for one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

SLICE_S = 0.01  # of computing between two pauses
REST_FACTOR = 2.0  # of the time waited for a core: where two want one core, the standby takes a quarter of it
REST_S_MAX = 0.25  # at a time
_SCHEDSTAT = Path("/proc/thread-self/schedstat")  # nanoseconds on a core, nanoseconds waiting for one, slices


@contextlib.contextmanager
def yielding_imports() -> Iterator[None]:
    """Lets imports within the block yield to other processes, module by module."""
    pauses = _Pauses()
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # a process that wakes up goes first
    sys.meta_path.insert(0, pauses)
    try:
        yield
    finally:
        sys.meta_path.remove(pauses)
        for thread in Path("/proc/self/task").iterdir():  # those that libraries have started meanwhile, too
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))


class _Pauses:
    """A finder that finds nothing, and rests where others want the cores."""

    def __init__(self) -> None:
        self._rest = threading.Event()
        self._computed_s, self._waited_s = time.thread_time(), _waited_s()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if time.thread_time() - self._computed_s >= SLICE_S:
            rest_s = min(REST_FACTOR * (_waited_s() - self._waited_s), REST_S_MAX)
            if rest_s > 0.001:
                self._rest.wait(rest_s)
            self._computed_s, self._waited_s = time.thread_time(), _waited_s()
        return None


def _waited_s() -> float:
    """The time that this thread has waited for a core; 0.0 where the kernel keeps no account."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
