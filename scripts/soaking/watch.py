"""Check what must not grow in a run under trouble, and what must not be left of it."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import psutil

from procsv.base.run.paths import find_paths
from scripts.soaking.bounds import ROWS, Sight, find_growth
from tests.support.launched import Launched, procsv

DESCRIPTORS_GROWTH_MAX = 8
GONE_S_MAX = 40.0  # after a kill of the watchdog, the checkpoint service ends last


class Watch:
    """What must not grow."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.sockets_lost = 0  # each leaves the watchdog with the old socket, to which its peers are still connected
        self._descriptors: int | None = None

    def check_growth(self, run: Launched) -> str:
        """Note what is wrong; return a line about the current state."""
        with contextlib.suppress(psutil.Error):
            watchdog, paths = psutil.Process(run.process.pid), find_paths(run.logdir)
            rss, descriptors = watchdog.memory_info().rss, watchdog.num_fds()
            self._descriptors = descriptors if self._descriptors is None else min(self._descriptors, descriptors)
            most = self._descriptors + DESCRIPTORS_GROWTH_MAX + self.sockets_lost
            grown = find_growth(Sight(paths, watchdog))
            grown += [f"{descriptors} descriptors of the watchdog"] if descriptors > most else []
            self.wrong += [what for what in grown if what not in self.wrong]
            return f"watchdog {rss / 2**20:.1f} MiB, {descriptors} fds; {len(ROWS)} bounds, {len(grown)} of them passed"
        return "the watchdog is starting"

    def forget(self) -> None:
        """Forget the old figures: there is a new watchdog."""
        self._descriptors, self.sockets_lost = None, 0


def find_remains(logdir: Path) -> list[str]:
    """Return what is left behind, and what is missing."""
    wrong = find_live(logdir)
    listing = procsv("checkpoints", str(logdir), "--verify")
    if listing.returncode:
        wrong.append(listing.stdout + listing.stderr)
    return wrong


def find_live(logdir: Path) -> list[str]:
    """Return what is left in shared memory and in the runtime directory."""
    paths = find_paths(logdir)
    deadline_s, pause = time.monotonic() + GONE_S_MAX, threading.Event()
    while (paths.shm_dir.exists() or paths.run_dir.exists()) and time.monotonic() < deadline_s:
        pause.wait(0.1)
    return [f"left: {path}" for path in (paths.shm_dir, paths.run_dir) if path.exists()]
