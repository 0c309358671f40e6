"""Check and recreate the run's directories, sockets and locks.

Used by event_loop.py. The directories are `procsv/` in the logdir, the runtime directory, and the
run's directory in shared memory. Sockets and locks are in the runtime directory.

This module recreates the directories and the run's lock. Each other process checks and recreates
its own socket, lock and heartbeat. The logdir itself is never created here: if it is missing, it
may be on a disk that will be mounted again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from procsv.base.identity import TaskId
from procsv.base.run.paths import RunPaths, has_name, keep_name, make_private_dir
from procsv.base.run.records import make_home
from procsv.base.system.disk import has_room
from procsv.base.system.locks import FileLock
from procsv.watchdog.core.events import FileState
from procsv.watchdog.core.run_files import LOCK, LOGDIR, RUN_DIR, SHM_DIR, SOCKET


class RunFiles:
    def __init__(
        self, paths: RunPaths, lock: FileLock, services: Iterable[TaskId], has_socket: Callable[[], bool]
    ) -> None:
        """`has_socket`: returns whether the control socket is in place."""
        self._paths, self._lock, self._services, self._has_socket = paths, lock, tuple(services), has_socket

    def states(self) -> tuple[FileState, ...]:
        paths = self._paths
        # The logdir's id in `procsv/` shows that the directory is ours. Its owner does not show that, because another
        # user of our group may have made the directory for an earlier run.
        home = _identity(paths.home, stat.S_ISDIR, is_anybodys=True) if has_name(paths) else None
        logdir = FileState(what=LOGDIR, path=str(paths.logdir), identity=home, is_reported_elsewhere=True)
        own = {SOCKET: (paths.control_socket, self._has_socket()), LOCK: (paths.run_lock, self._lock.is_in_place())}
        return (
            *(() if paths.own_home else (logdir,)),  # with own_home, the run keeps no files in the logdir
            FileState(what=RUN_DIR, path=str(paths.run_dir), identity=_identity(paths.run_dir, stat.S_ISDIR)),
            FileState(what=SHM_DIR, path=str(paths.shm_dir), identity=_identity(paths.shm_dir, stat.S_ISDIR)),
            *(
                FileState(what=what, path=str(path), identity=_identity(path, bool) if is_ours else None)
                for what, (path, is_ours) in own.items()
            ),
            *(self._of_service(SOCKET, task) for task in self._services),
            *(self._of_service(LOCK, task) for task in self._services),
        )

    def _of_service(self, what: str, task: TaskId) -> FileState:
        if what == SOCKET:
            path = self._paths.service_socket(task)
            return FileState(what=what, path=str(path), identity=_identity(path, stat.S_ISSOCK), owner=task)
        path = self._paths.service_lock(task)
        return FileState(
            what=what, path=str(path), identity=_identity(path, stat.S_ISREG) if _is_held(path) else None, owner=task
        )

    def has_room(self) -> bool:
        """Whether files can be written in the logdir."""
        return has_room(self._paths.home)

    def restore(self, what: str, path: str) -> None:
        """Recreate a directory of the run, or the run's lock. OSError or UserError if that fails.

        `what`: LOCK, or the directory's kind. For LOGDIR, this recreates only `procsv/` in it.
        """
        paths = self._paths
        if what == LOCK:
            self._lock.relock()
        elif what != LOGDIR:
            if what == RUN_DIR:
                paths.run_dir.parent.mkdir(mode=0o700, exist_ok=True)
            make_private_dir(Path(path))
            if paths.own_home is not None and what == RUN_DIR:
                make_home(paths)
        elif paths.logdir.is_dir():
            make_home(paths)
            keep_name(paths)
        else:
            raise FileNotFoundError("it does not exist any more")


def _identity(path: Path, is_right: Callable[[int], bool], *, is_anybodys: bool = False) -> tuple[int, int] | None:
    """Return the device and inode of the path; None if it is not the right file.

    `is_right` checks the kind of file; `bool` accepts every kind. `is_anybodys`: the file may
    belong to another user.
    """
    try:
        info = path.stat() if is_right is stat.S_ISDIR else path.lstat()
    except OSError:
        return None
    is_allowed = is_anybodys or info.st_uid == os.getuid()
    return (info.st_dev, info.st_ino) if is_right(info.st_mode) and is_allowed else None


def _is_held(path: Path) -> bool:
    try:
        return FileLock(path).is_held()
    except OSError:
        return True  # unknown, for example because no file descriptors are left: do not report a loss
