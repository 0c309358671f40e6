"""Remove a run's files by name from its run directory and from shared memory.

The watchdog does so at the end of a run, or the checkpoint service if the service ends last.  A
launch does so for a killed run.  Files that are not ours stay, and so does their directory.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from procsv.base.run.paths import RunPaths

OWNER = "owner.json"  # names the owner of a directory (stale_memory.py)
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
KILLED_FILES = (".*.new",)  # left by a process that was killed in atomic_file.replace_file
SHM_FILES = (OWNER, "slot.*", "meta.*", "parcel.*", "event.*", "file.*", "deputy.*")  # deputy.*: from older versions
SHM_DIRS = ("staged.*",)


def remove_run_files(paths: RunPaths, keep: frozenset[Path] = frozenset()) -> None:
    """Removes our files from the run directory, except `keep` (a lock that is still held, say)."""
    remove_files(paths.run_dir, keep)


def remove_files(directory: Path, keep: frozenset[Path] = frozenset()) -> None:
    """Removes our files from any run directory, except `keep`."""
    for pattern in RUN_FILES + KILLED_FILES:
        for path in directory.glob(pattern):
            if path not in keep:
                path.unlink(missing_ok=True)


def remove_shm_files(paths: RunPaths) -> None:
    """Removes slots, parcels and staged checkpoints.

    Call it only when nobody needs their contents any more.
    """
    remove_memory(paths.shm_dir)


def is_memory_empty(paths: RunPaths) -> bool:
    """Whether the shared memory holds nothing but the name of its owner."""
    with contextlib.suppress(OSError):
        return all(path.name == OWNER for path in paths.shm_dir.iterdir())
    return True


def remove_memory(directory: Path) -> None:
    """Removes slots, parcels and staged checkpoints from any directory of shared memory."""
    for pattern in SHM_FILES + KILLED_FILES:
        for path in directory.glob(pattern):
            path.unlink(missing_ok=True)
    remove_staged(directory)


def remove_staged(directory: Path) -> None:
    """Removes staged checkpoints from `directory`.

    They are in shared memory or, if shared memory had no room for them, in `RunPaths.home`.
    """
    for pattern in SHM_DIRS:
        for path in directory.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def remove_dirs(paths: RunPaths) -> None:
    """Removes the run directory and the directory of shared memory if they are empty.

    Also removes `own_home`, if there is one, with all its contents, unless it is a member's.
    """
    if paths.own_home is not None and not paths.is_member:
        shutil.rmtree(paths.own_home, ignore_errors=True)
    for path in (paths.shm_dir, paths.run_dir):
        with contextlib.suppress(OSError):
            path.rmdir()
