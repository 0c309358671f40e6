"""Remove the lock of a `dataset.cache(file)` that a killed attempt of this run has left.

The bootstrap calls this.  TensorFlow creates `file_0.lockfile` while it writes a cache, and refuses
to write if there is one.  A kill leaves the lock behind, and every later start fails.  Only the
writer knows that a lock is its own, because it holds the cache's data file open.  So an attempt
that writes a cache notes the lock in the run directory.  The next attempt, which starts when that
one is dead, removes exactly that lock, and the unfinished data file.  Any other lock stays, and
procsv reports it.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import importlib
import os
from pathlib import Path
from typing import Any

import msgspec

from procsv.base.encoding import decode_json, encode_json
from procsv.base.system.atomic_file import replace_file
from procsv.training.graph.patches import AttributePatch
from procsv.training.process.after_import import call_after_import
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import say

LOOK_S = 0.5  # between checks for our locks; after a kill before the first check, a lock is only reported
CACHES_MAX = 100  # in a program; locks of further caches are only reported
_PARTIAL = ".tempstate"  # in the name of an unfinished data file


class Lock(msgspec.Struct, frozen=True):
    """A lock that this process holds, and the data file that it writes under the lock."""

    path: str
    inode: int
    changed_ns: int
    data: str

    @classmethod
    def of(cls, path: str, data: str) -> Lock:
        """Reads the lock at `path`; FileNotFoundError if there is none."""
        found = Path(path).lstat()
        return cls(path, found.st_ino, found.st_mtime_ns, data)


class CacheLocks:
    """The cache locks of one task."""

    def __init__(self, notes: Path) -> None:
        """`notes`: the file in which an attempt notes its locks for the next one.

        It lies in the run directory, which only this run uses.
        """
        self._notes = notes
        self._left = _read_notes(notes)  # by previous attempts
        self._prefixes: list[str] = []  # of the program's caches
        self._held: list[Lock] = []
        self._next_s = 0.0

    def use_cache(self, prefix: str) -> None:
        """Removes locks that killed attempts of this run have left on a cache, and reports others.

        The names of the cache's files begin with `prefix`.  From now on `note_locks` notes the
        locks that this process takes on it.
        """
        directory, name = os.path.split(os.path.abspath(prefix))
        directory = os.path.realpath(directory)  # as /proc/self/fd shows open files
        prefix = os.path.join(directory, name)
        if prefix in self._prefixes:
            return
        if len(self._prefixes) < CACHES_MAX:
            self._prefixes.append(prefix)
        for found in sorted(Path(directory).glob(f"{glob.escape(name)}_*.lockfile")):
            path = str(found)
            if not self._remove_left(path) and not any(lock.path == path for lock in self._held):
                say(
                    f"{path} exists: another program is writing this cache, or was killed while it wrote it, and "
                    "TensorFlow will refuse the cache; if no program is writing it, delete that file"
                )

    def _remove_left(self, path: str) -> bool:
        for lock in self._left:
            if lock.path == path and Lock.of(path, lock.data) == lock:
                with contextlib.suppress(FileNotFoundError):
                    Path(lock.data).unlink()  # after a kill here the lock remains, and the next attempt removes it
                Path(path).unlink()
                say(f"removed {path}: the attempt that wrote this cache was killed")
                return True
        return False

    def note_locks(self, now_s: float) -> None:
        """Notes the locks that this process now holds.  OSError if that is impossible now."""
        if not self._prefixes or now_s < self._next_s:
            return
        self._next_s = now_s + LOOK_S
        held = [lock for data in _open_files(_PARTIAL) for lock in self._locks_of(data)]
        if held != self._held:
            replace_file(self._notes, encode_json([*held, *self._left]))
            self._held = held

    def _locks_of(self, data: str) -> list[Lock]:
        for prefix in self._prefixes:
            number, is_data, _ = data.removeprefix(f"{prefix}_").partition(".data-")
            if data.startswith(f"{prefix}_") and is_data and number.isdecimal():
                with contextlib.suppress(FileNotFoundError):
                    return [Lock.of(f"{prefix}_{number}.lockfile", data)]
        return []


def _open_files(part: str) -> list[str]:
    """Open files of this process whose names contain `part`."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # just closed
            path = str(link.readlink())
            if part in path:
                found.append(path)
    return sorted(found)


def _read_notes(notes: Path) -> list[Lock]:
    try:
        return decode_json(notes.read_bytes(), list[Lock])
    except (FileNotFoundError, msgspec.DecodeError):
        return []


def watch_caches(runtime: Runtime) -> None:
    """Handles cache locks in this process once the program has imported TensorFlow."""
    locks = CacheLocks(runtime.connection.paths.run_dir / f"caches.{runtime.connection.start.task}.json")
    runtime.connection.link.on_tick.append(locks.note_locks)

    def patch() -> None:
        kinds = importlib.import_module("tensorflow.python.data.ops.dataset_ops")

        def noting(cache: Any) -> Any:
            @functools.wraps(cache)
            def cached(self: Any, filename: Any = "", *args: Any, **kwargs: Any) -> Any:
                if isinstance(filename, str | os.PathLike) and os.fspath(filename):
                    locks.use_cache(os.fspath(filename))
                return cache(self, filename, *args, **kwargs)

            return cached

        for kind in (kinds.DatasetV2, kinds.DatasetV1):
            if "cache" in vars(kind):
                AttributePatch(kind, "cache", noting).apply()

    call_after_import("tensorflow", patch)
