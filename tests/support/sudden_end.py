"""The end of many processes at one blow, as a machine's: none of them sees another's, or has time to do anything."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import psutil

GONE_S_MAX = 60.0
LOOK_S = 0.02


def end_at_once(find: Callable[[], Iterable[psutil.Process]]) -> set[int]:
    """Ends all that `find` finds, and what they start meanwhile; their pids.  Returns when they are gone."""
    found: dict[int, psutil.Process] = {}
    while new := {process.pid: process for process in find() if process.pid not in found}:
        for process in new.values():  # none of them is to see another's end, nor to have children meanwhile
            with contextlib.suppress(psutil.Error):
                process.suspend()
        found |= new
    # Children first: the kernel has a stopped process group whose last parent dies go on, with a SIGHUP to act on.
    for process in sorted(found.values(), key=lambda one: (one.create_time(), one.pid), reverse=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
    until_s, pause = time.monotonic() + GONE_S_MAX, threading.Event()
    while any(map(is_alive, found)):
        assert time.monotonic() < until_s, f"some of {sorted(found)} go on"
        pause.wait(LOOK_S)
    return set(found)


def with_variable(**expected: str) -> Iterator[psutil.Process]:
    """All processes with these variables in their environment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            said = process.environ()
            if all(said.get(name) == value for name, value in expected.items()):
                yield process


def find_living(pids: Iterable[int]) -> list[psutil.Process]:
    """Those of them that are there, for psutil to wait for; any may end while it is looked for."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def is_alive(pid: int) -> bool:
    """Whether the process still does anything; one that has ended may wait for its parent's word."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
