"""What must not grow in a run under trouble, and what must not be left of it."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import psutil

from procsv.base.run.paths import find_paths
from tests.support.launched import Launched, procsv

WATCHDOG_BYTES_MAX = 48 * 2**20
DESCRIPTORS_GROWTH_MAX = 8
SHM_FILES_MAX = 12
RUN_FILES_MAX = 24  # sockets, locks, heartbeats
SERVICE_BYTES_MAX = 256 * 2**20
LOG_FILES_MAX = 3 * 20 + 3
GONE_S_MAX = 40.0  # after a kill of the watchdog the checkpoint service is the last one out


class Watch:
    """What must not grow."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.sockets_lost = 0  # each leaves the watchdog with the socket that its peers are still connected to
        self._descriptors: int | None = None

    def check_growth(self, run: Launched) -> str:
        """Notes what is wrong; a line that says how it stands."""
        with contextlib.suppress(psutil.Error):
            watchdog = psutil.Process(run.process.pid)
            rss, descriptors = watchdog.memory_info().rss, watchdog.num_fds()
            paths = find_paths(run.logdir)
            shm = len(list(paths.shm_dir.glob("*")))
            logs, run_files = len(list(paths.logs.glob("*"))), sorted(p.name for p in paths.run_dir.glob("*"))
            self._descriptors = descriptors if self._descriptors is None else min(self._descriptors, descriptors)
            self._check(rss <= WATCHDOG_BYTES_MAX, f"the watchdog has {rss / 2**20:.0f} MiB")
            most = self._descriptors + DESCRIPTORS_GROWTH_MAX + self.sockets_lost
            self._check(descriptors <= most, f"{descriptors} descriptors")
            self._check(shm <= SHM_FILES_MAX, f"{shm} files in shared memory")
            self._check(len(run_files) <= RUN_FILES_MAX, f"files in the run directory: {' '.join(run_files)}")
            self._check(logs <= LOG_FILES_MAX, f"{logs} logs")
            for child in watchdog.children():
                if "procsv.services" in " ".join(child.cmdline()):
                    size = child.memory_info().rss
                    self._check(size <= SERVICE_BYTES_MAX, f"a service has {size / 2**20:.0f} MiB")
            files = f"{shm} files in shared memory, {len(run_files)} in the run directory, {logs} logs"
            return f"watchdog {rss / 2**20:.1f} MiB, {descriptors} fds; {files}"
        return "the watchdog is starting"

    def _check(self, is_well: bool, what: str) -> None:
        if not is_well and what not in self.wrong:
            self.wrong.append(what)

    def forget(self) -> None:
        """Another watchdog."""
        self._descriptors, self.sockets_lost = None, 0


def find_remains(logdir: Path) -> list[str]:
    """What is left, and what is not there any more."""
    wrong = find_live(logdir)
    listing = procsv("checkpoints", str(logdir), "--verify")
    if listing.returncode:
        wrong.append(listing.stdout + listing.stderr)
    return wrong


def find_live(logdir: Path) -> list[str]:
    """What is left in shared memory and in the runtime directory."""
    paths = find_paths(logdir)
    deadline_s, pause = time.monotonic() + GONE_S_MAX, threading.Event()
    while (paths.shm_dir.exists() or paths.run_dir.exists()) and time.monotonic() < deadline_s:
        pause.wait(0.1)
    return [f"left: {path}" for path in (paths.shm_dir, paths.run_dir) if path.exists()]
