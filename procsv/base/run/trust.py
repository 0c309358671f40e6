"""Trust in a run.json: whoever can write to a logdir can put one there, and name any process and directory in it.

Used wherever a run is looked up.  The directories carry the id of the logdir in which the file lies, and nobody else can write there:
a copy of the logdir has another id, so it names no process or directory of the original.  The process is the file's owner's.  What acts on a run asks besides that the process holds the run's lock.
"""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from procsv.base.run.paths import SHM_ROOT, RunPaths, find_paths, run_name
from procsv.base.system.process_state import has_open

if TYPE_CHECKING:
    from procsv.base.run.run_file import RunFile


def believed(run: RunFile, run_json: Path) -> RunFile:
    """`run`, read from `run_json`, without what is not its own: of no boot, its process is not alive."""
    try:
        owner = run_json.stat().st_uid
    except OSError:
        return msgspec.structs.replace(run, boot="")
    home = run_json.parent
    if not _has_own_directories(run.paths, run_name(home, owner), owner):
        own = find_paths(home.parent)
        return msgspec.structs.replace(run, boot="", run_dir=str(own.run_dir), shm_dir=str(own.shm_dir))
    with contextlib.suppress(psutil.Error):  # it is dead
        if psutil.Process(run.pid).uids().effective != owner:
            return msgspec.structs.replace(run, boot="")
    return run


def _has_own_directories(paths: RunPaths, name: str, owner: int) -> bool:
    """Whether both have that name, under whatever runtime directory, and nobody else can write there."""
    run_dir, shm_dir = paths.run_dir, paths.shm_dir
    is_named = run_dir.is_absolute() and run_dir.name in (f"procsv-{name}", f"procsv-{owner}-{name}")
    is_shm_named = shm_dir in (SHM_ROOT / f"procsv-{owner}-{name}", run_dir / "shm")
    return is_named and is_shm_named and _is_private(run_dir, owner) and _is_private(shm_dir, owner)


def _is_private(directory: Path, owner: int) -> bool:
    try:
        info = directory.lstat()
    except OSError:
        return True  # there is nothing to be misled to
    return stat.S_ISDIR(info.st_mode) and info.st_uid == owner and not stat.S_IMODE(info.st_mode) & 0o022


def holds_run_lock(run: RunFile) -> bool:
    """Whether the process of `run` has its lock file open, removed or not; PermissionError of another user's process."""
    return has_open(run.pid, run.paths.run_lock)
