"""Shared memory that nobody comes back for: directories of launches that were killed, and copies of jobs that were never started again.

Called by acquire_run.py, at the start of every launch.  What a killed run has in memory is not among them: its next launch goes on
from that.  Killed anywhere in here: the next launch sweeps the rest.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from procsv.base.clock import Clock
from procsv.base.errors import LogdirLocked
from procsv.base.run.cleanup import remove_memory
from procsv.base.run.paths import make_private_dir
from procsv.base.system.locks import FileLock

LOCK = "launch.lock"  # held by the launch whose directory it is
COPY_S_MAX = 7 * 86_400.0  # a copy of a chief's memory that nobody has brought up to date, or come for, since then
TRIES_MAX = 100
LOOK_S = 0.02


def hold_memory(directory: Path, clock: Clock, wait: Callable[[float], None]) -> FileLock:
    """Makes the directory of this launch, which nobody sweeps as long as the lock is held."""
    lock = FileLock(directory / LOCK)
    for _ in range(TRIES_MAX):
        make_private_dir(directory)
        with contextlib.suppress(FileNotFoundError):  # it was swept just now
            if lock.try_acquire("procsv launch", clock.wall()):
                return lock
        wait(LOOK_S)
    raise LogdirLocked(f"{lock.path} is held by another process")


def sweep_memory(root: Path, wall_s: float) -> None:
    """Removes what no process comes back for, of ours; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        for directory in _ours(root, "-shm"):
            _sweep_launch(directory, wall_s)
        for directory in _ours(root, "-mirror-*"):
            _sweep_copy(directory, wall_s)


def _ours(root: Path, ending: str) -> Iterator[Path]:
    """Everybody may make a directory of any name there."""
    for path in root.glob(f"procsv-{os.getuid()}-*{ending}"):
        with contextlib.suppress(OSError):
            there = path.lstat()
            if stat.S_ISDIR(there.st_mode) and there.st_uid == os.getuid():
                yield path


def _sweep_launch(directory: Path, wall_s: float) -> None:
    """One without the lock's file is in the making, or of a version that had none."""
    lock = FileLock(directory / LOCK)
    with contextlib.suppress(OSError):
        if not lock.path.exists() or lock.is_held() or not lock.try_acquire("a sweep", wall_s, is_brief=True):
            return
        try:
            remove_memory(directory)
        finally:
            lock.release()
        directory.rmdir()


def _sweep_copy(directory: Path, wall_s: float) -> None:
    """Whoever has it open goes on with what was there."""
    with contextlib.suppress(OSError):
        newest_s = max(path.lstat().st_mtime for path in (directory, *directory.iterdir()))
        if wall_s - newest_s > COPY_S_MAX:
            remove_memory(directory)
            directory.rmdir()
