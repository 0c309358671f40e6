"""Create and open the records of a run in its logdir with the right permissions.

run.json, journal, logs and crash reports contain a program's arguments and exceptions, which may
contain secrets.  So only the owner may read them, and the logdir's group if the user allows it.
The mode of `<logdir>/procsv` tells every process of the run whether the group may.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from pathlib import Path

from procsv.base.errors import LogdirLocked
from procsv.base.run.paths import RunPaths
from procsv.base.system.data_file import NotAFile, open_data

PRIVATE, GROUP_READABLE = 0o700, 0o750


def make_home(paths: RunPaths, *, group_readable: bool = False) -> None:
    """Creates the directories of the records and tries to write there.

    LogdirLocked if that fails, NotAFile if the journal is not a regular file.
    """
    try:
        paths.records.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        paths.home.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        group = paths.logdir.stat().st_gid if group_readable else None
        paths.logs.mkdir(mode=PRIVATE, exist_ok=True)
        for directory in (paths.home, paths.logs, paths.crashes):
            if directory.is_dir():
                _set_access(directory, group)
        probe = paths.home / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
        with contextlib.suppress(FileNotFoundError):
            os.close(open_data(paths.journal))  # check now, while nothing needs to be undone
    except NotAFile:
        raise
    except OSError as error:
        raise LogdirLocked(
            f"the logdir {paths.logdir} cannot be written: {error.strerror}{whose(paths.home)}"
        ) from error


def make_record_dir(path: Path) -> None:
    """Creates `path`, a directory in `<logdir>/procsv`, as readable as its parent.

    Does nothing if it exists.
    """
    if not path.is_dir():
        path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        parent = path.parent.stat()
        _set_access(path, parent.st_gid if parent.st_mode & stat.S_IRGRP else None)


def open_record(path: Path, flags: int) -> int:
    """Opens `path`, and creates it if necessary.

    NotAFile if it is a link, or anything but a regular file.
    """
    fd = open_data(path, flags | os.O_CREAT)
    with contextlib.suppress(PermissionError):
        os.fchmod(fd, record_mode(path.parent))
    return fd


def record_mode(directory: Path) -> int:
    """Returns the mode for a file in `directory`."""
    return 0o640 if directory.stat().st_mode & stat.S_IRGRP else 0o600


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _set_access(directory: Path, group: int | None) -> None:
    """Lets only the owner read a directory.

    `group`: also lets that group read it.  New files in the directory get the same group.
    """
    with contextlib.suppress(PermissionError):  # a filesystem without owners, or a group that we do not belong to
        directory.chmod(PRIVATE)
        if group is not None:
            os.chown(directory, -1, group)
            directory.chmod(GROUP_READABLE | stat.S_ISGID)


def whose(path: Path) -> str:
    """Returns the end of an error: who owns `path`, or the directory that hides it; "" if we do."""
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            owner = place.stat().st_uid
            return "" if owner == os.geteuid() else f"; {place} belongs to {user_name(owner)}"
    return ""
