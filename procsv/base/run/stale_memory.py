"""Hold the directories that a run has outside its logdir, and remove abandoned ones.

Each runtime directory and each directory of shared memory contains `owner.json`, which names the
logdir.  Watchdog and services share a lock on the directory itself, which also works between
containers that share a /dev/shm.  Every launch sweeps at its start (open_run.py): it removes
abandoned directories, but nothing that is locked.  A killed run's memory stays for a week, because
the run's next launch resumes from it.

A logdir counts as deleted only in the mount namespace in which it was named, and only if its
filesystem is still mounted there.  In another container the path means something else, and a
missing disk may come back.  If a launch is killed during its sweep, the next launch sweeps the
rest.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from pathlib import Path
from typing import Annotated

import msgspec

from procsv.base.encoding import decode_json, encode_json
from procsv.base.errors import LogdirLocked
from procsv.base.run.cleanup import OWNER, remove_files, remove_memory
from procsv.base.run.paths import SHM_ROOT, RunPaths, logdir_hash, make_private_dir
from procsv.base.run.run_file import RunFile, read_run
from procsv.base.run.run_id import find_id
from procsv.base.system.atomic_file import replace_file
from procsv.base.system.locks import DirectoryLock, FileLock, Holder, held_alone
from procsv.base.system.tree_mark import mount_namespace

UNTOUCHED_S_MAX = 7 * 86_400.0  # a watchdog touches the directories of its run every few seconds
SWEEP_S_MAX = 1.0  # a launch waits no longer, because another run's logdir may be on a server that does not answer
OWNER_BYTES_MAX = 2**16
TRIES_MAX = 100
LOOK_S = 0.02
NAME = re.compile(r"procsv-(\d+-)?[0-9a-f]{16}(-mirror-[0-9a-f]{8})?")


class Owner(msgspec.Struct, frozen=True):
    """The contents of owner.json."""

    home: Annotated[str, msgspec.Meta(pattern=r"^/[^\x00]*$")]  # `procsv` in the logdir
    device: Annotated[int, msgspec.Meta(ge=0)]  # of its filesystem
    mounts: str  # the mount namespace in which `home` is valid
    is_kept: bool  # whether the next launch in the logdir resumes from the snapshots in this directory


class Logdir(Enum):
    """The state of the logdir that a directory belongs to."""

    HIDDEN = auto()  # not visible from here
    DELETED = auto()  # or replaced by another run
    ENDED = auto()  # the run is over, and everything is on disk
    RESUMABLE = auto()


def is_stale(owner: Owner | None, logdir: Logdir, untouched_s: float) -> bool:
    """Whether an unlocked directory is abandoned.

    Any directory is abandoned if nobody has touched it for a week (UNTOUCHED_S_MAX).  Before that,
    a directory without an owner is not, because a launch may be just creating it.
    """
    if untouched_s > UNTOUCHED_S_MAX:
        return True
    return owner is not None and (not owner.is_kept or logdir in (Logdir.DELETED, Logdir.ENDED))


def judge_logdir(owner: Owner, mounts: str, run_id: str, there: str | None, device: int, run: RunFile | None) -> Logdir:
    """Judges the state of the logdir that a directory belongs to.

    `mounts`: our mount namespace.  `run_id`: the id in the directory's name.  `there`: the id at
    the owner's `home`, "" if it cannot be read, None if `home` does not exist.  `device`: the
    device of `home`, or of its nearest existing parent.  `run`: the run.json in `home`.
    """
    if owner.mounts != mounts or not mounts:
        return Logdir.HIDDEN
    if there != run_id:
        return Logdir.DELETED if there != "" and device == owner.device else Logdir.HIDDEN
    is_on_disk = run is not None and run.ended_at is not None and run.memory_step <= run.durable_step
    return Logdir.ENDED if is_on_disk else Logdir.RESUMABLE


# -- held ------------------------------------------------------------------------------------------------------
class HeldDirectory:
    """A directory that a run uses, from `hold` to `release_directory`."""

    def __init__(self, path: Path) -> None:
        self._lock, self._owner = DirectoryLock(path, is_shared=True), b""

    def hold(self, wait: Callable[[float], None], *, alone: bool = False) -> None:
        """Creates the directory and protects it from sweeps.

        Waits while a sweep holds the directory.  With `alone`, also waits while any other process
        holds it, such as a service that is ending.  LogdirLocked if that takes too long.
        """
        for _ in range(TRIES_MAX):
            make_private_dir(self._lock.path)
            with contextlib.suppress(FileNotFoundError):  # it was just swept
                is_ours = self._lock.try_acquire() and (not alone or self._lock.is_alone())
                if is_ours and self._lock.is_in_place():
                    return
            wait(LOOK_S)
        raise LogdirLocked(
            f"{self._lock.path} is in use by a process that cannot be seen from here: the run may be active in another container; end it there"
        )

    def claim(self, owner: Owner) -> None:
        """Writes down the directory's owner."""
        self._owner = encode_json(owner)
        self._write_mark()

    def _write_mark(self) -> None:
        with contextlib.suppress(OSError):  # no room: without an owner, the directory is swept after a week
            replace_file(self._lock.path / OWNER, self._owner, durable=False, mode=0o600)

    def keep_held(self) -> None:
        """Touches the directory to show that it is in use.

        If the directory was replaced, holds the directory that is now at the path.
        """
        with contextlib.suppress(OSError):
            self._lock.relock()
            if not (self._lock.path / OWNER).exists():
                self._write_mark()
            os.utime(self._lock.path)

    def release_directory(self) -> None:
        self._lock.release_lock()


def make_owner(paths: RunPaths) -> Owner:
    """Returns the owner to write into our run's directories."""
    home = paths.logdir / "procsv"
    return Owner(str(home), _device(home), mount_namespace(), is_kept=paths.own_home is None)


def find_claim(paths: RunPaths) -> Holder | None:
    """Finds an active run whose logdir was at this path and was deleted or moved.

    Returns the holder of the run's lock; None if there is no such run.
    """
    for directory in _ours(*_runtime_roots(paths)):
        owner, lock = _read_owner(directory), FileLock(directory / paths.run_lock.name)
        is_same = owner is not None and owner.is_kept and Path(owner.home) == paths.home and directory != paths.run_dir
        if is_same and owner is not None and owner.mounts == mount_namespace():
            with contextlib.suppress(OSError):
                if lock.is_held():
                    return lock.holder()
    return None


# -- swept -----------------------------------------------------------------------------------------------------
def sweep_beside(paths: RunPaths, wall_s: float) -> None:
    """Sweeps all our directories, but waits only a second if a filesystem does not answer."""
    roots = {SHM_ROOT, *_runtime_roots(paths)}
    sweep = threading.Thread(target=sweep_directories, args=(roots, wall_s), name="sweep", daemon=True)
    sweep.start()
    sweep.join(SWEEP_S_MAX)


def sweep_directories(roots: Iterable[Path], wall_s: float) -> None:
    """Removes our abandoned directories; those that cannot be removed stay."""
    for directory in _ours(*roots):
        with contextlib.suppress(OSError), held_alone(directory) as is_free:
            if is_free and not any(FileLock(lock).is_held() for lock in directory.glob("*.lock")):
                _sweep(directory, wall_s)


def _sweep(directory: Path, wall_s: float) -> None:
    owner = _read_owner(directory)
    newest_s = max(path.lstat().st_mtime for path in (directory, *directory.iterdir()))
    if is_stale(owner, Logdir.HIDDEN if owner is None else _look_at_logdir(owner, directory), wall_s - newest_s):
        for memory in (directory, directory / "shm"):
            remove_memory(memory)
        shutil.rmtree(directory / "home", ignore_errors=True)
        remove_files(directory)
        with contextlib.suppress(FileNotFoundError):
            (directory / "shm").rmdir()
        directory.rmdir()


def _look_at_logdir(owner: Owner, directory: Path) -> Logdir:
    home, mounts = Path(owner.home), mount_namespace()
    if owner.mounts != mounts:  # the path belongs to another container, so do not look there
        return Logdir.HIDDEN
    run_id, there = directory.name.rpartition("-")[2], None
    if home.is_dir():
        there = run_id if run_id == logdir_hash(home.parent) else find_id(home)  # a URL's runs are named by a hash
    return judge_logdir(owner, mounts, run_id, there, _device(home), read_run(home / "run.json"))


def _device(path: Path) -> int:
    """Returns the device of `path`, or of its nearest existing parent."""
    while not path.is_dir():
        path = path.parent
    return path.stat().st_dev


def _runtime_roots(paths: RunPaths) -> set[Path]:
    return {
        paths.run_dir.parent,
        Path(tempfile.gettempdir()),
        *map(Path, filter(None, [os.environ.get("XDG_RUNTIME_DIR")])),
    }


def _ours(*roots: Path) -> Iterator[Path]:
    """Yields those directories that are really ours.

    Any user may create a directory of any name there.
    """
    for path in [path for root in roots for path in root.glob("procsv-*") if NAME.fullmatch(path.name)]:
        with contextlib.suppress(OSError):
            there = path.lstat()
            if stat.S_ISDIR(there.st_mode) and there.st_uid == os.getuid() and not there.st_mode & 0o077:
                yield path


def _read_owner(directory: Path) -> Owner | None:
    try:
        with (directory / OWNER).open("rb") as file:
            return decode_json(file.read(OWNER_BYTES_MAX), Owner)
    except (OSError, msgspec.DecodeError):
        return None
