"""End many processes at once, as the loss of a machine does: none sees another's end or has time to react."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import psutil

GONE_S_MAX = 60.0
LOOK_S = 0.02


def end_at_once(find: Callable[[], Iterable[psutil.Process]]) -> set[int]:
    """Kill all processes that `find` finds and all that they start. Return their pids once they are gone."""
    found: dict[int, psutil.Process] = {}
    while new := {process.pid: process for process in find() if process.pid not in found}:
        for process in new.values():  # stopped first, so that none sees another's end or starts a child
            with contextlib.suppress(psutil.Error):
                process.suspend()
        found |= new
    # Children first: when its last parent dies, the kernel continues a stopped process group and
    # sends SIGHUP.
    for process in sorted(found.values(), key=lambda one: (one.create_time(), one.pid), reverse=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
    until_s, pause = time.monotonic() + GONE_S_MAX, threading.Event()
    while any(map(is_alive, found)):
        assert time.monotonic() < until_s, f"some of {sorted(found)} go on"
        pause.wait(LOOK_S)
    return set(found)


def with_variable(**expected: str) -> Iterator[psutil.Process]:
    """Yield all processes with these variables in their environment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            said = process.environ()
            if all(said.get(name) == value for name, value in expected.items()):
                yield process


def find_living(pids: Iterable[int]) -> list[psutil.Process]:
    """Return the living processes among `pids` for psutil to wait for. Any may end during the search."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def is_alive(pid: int) -> bool:
    """Return whether the process is running. A zombie that waits for its parent is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
