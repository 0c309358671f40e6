"""Removes what a run leaves in its run directory and on the shared-memory filesystem, by name.

Called by whoever ends the run (the watchdog), by the checkpoint service when it is the
last one out, and at a start for what a killed run left.  Files that are none of ours stay, and so does their directory.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from procsv.base.run.paths import RunPaths

OWNER = "owner.json"  # whose a directory is (stale_memory.py)
RUN_FILES = (
    OWNER,
    "*.sock",
    "*.heartbeat",
    "last_words.*.json",
    "plan.json",
    "stacks.*.txt",
    "loaded.json",
    "caches.*.json",
    "events.*.pos",
    "event.*",
    "parcel.*",
    "meta.*",
    "*.lock",
)
KILLED_FILES = (".*.new",)  # what a process that was killed within atomic.replace_file left
SHM_FILES = (OWNER, "slot.*", "meta.*", "parcel.*", "event.*", "file.*", "deputy.*")  # the last: of older versions
SHM_DIRS = ("staged.*",)


def remove_run_files(paths: RunPaths, keep: frozenset[Path] = frozenset()) -> None:
    """Empties the run directory of ours, but for `keep` (a lock that is still held, say)."""
    remove_files(paths.run_dir, keep)


def remove_files(directory: Path, keep: frozenset[Path] = frozenset()) -> None:
    """The same, of a directory."""
    for pattern in RUN_FILES + KILLED_FILES:
        for path in directory.glob(pattern):
            if path not in keep:
                path.unlink(missing_ok=True)


def remove_shm_files(paths: RunPaths) -> None:
    """Removes slots, parcels and staged checkpoints; only when nothing in them is needed any more."""
    remove_memory(paths.shm_dir)


def is_memory_empty(paths: RunPaths) -> bool:
    """Whether nothing but its owner's name is in there."""
    with contextlib.suppress(OSError):
        return all(path.name == OWNER for path in paths.shm_dir.iterdir())
    return True


def remove_memory(directory: Path) -> None:
    """The same, of a directory."""
    for pattern in SHM_FILES + KILLED_FILES:
        for path in directory.glob(pattern):
            path.unlink(missing_ok=True)
    remove_staged(directory)


def remove_staged(directory: Path) -> None:
    """Removes staged checkpoints: from shared memory, or from the run's own directory where that had no room."""
    for pattern in SHM_DIRS:
        for path in directory.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def remove_dirs(paths: RunPaths) -> None:
    """Removes both directories if nothing is left in them."""
    if paths.own_home is not None and not paths.is_member:
        shutil.rmtree(paths.own_home, ignore_errors=True)
    for path in (paths.shm_dir, paths.run_dir):
        with contextlib.suppress(OSError):
            path.rmdir()
