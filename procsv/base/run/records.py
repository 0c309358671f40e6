"""The records of a run in its logdir: who may read them, and how they are opened.

run.json, journal, logs and crash reports hold a program's arguments and its exceptions, which may hold secrets: they are the
owner's alone, or readable by the logdir's group where that was asked for.  The mode of `<logdir>/procsv` says which, to every
process of the run.
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
    """Makes the directories of the records, and tries to write there; LogdirLocked if that does not go, NotAFile if the journal is none."""
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
            os.close(open_data(paths.journal))  # now, while there is nothing to take back
    except NotAFile:
        raise
    except OSError as error:
        raise LogdirLocked(
            f"the logdir {paths.logdir} cannot be written: {error.strerror}{whose(paths.home)}"
        ) from error


def make_record_dir(path: Path) -> None:
    """Makes `path`, a directory in `<logdir>/procsv`, as readable as that is; nothing if it is there."""
    if not path.is_dir():
        path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        parent = path.parent.stat()
        _set_access(path, parent.st_gid if parent.st_mode & stat.S_IRGRP else None)


def open_record(path: Path, flags: int) -> int:
    """A descriptor of `path`, which is made if it is not there; NotAFile if it is a link, or anything but a regular file."""
    fd = open_data(path, flags | os.O_CREAT)
    with contextlib.suppress(PermissionError):
        os.fchmod(fd, record_mode(path.parent))
    return fd


def record_mode(directory: Path) -> int:
    """Of a file in `directory`."""
    return 0o640 if directory.stat().st_mode & stat.S_IRGRP else 0o600


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _set_access(directory: Path, group: int | None) -> None:
    """`group`: who else may read; what is made in the directory is theirs, too."""
    with contextlib.suppress(PermissionError):  # a filesystem without owners, or not a group of ours
        directory.chmod(PRIVATE)
        if group is not None:
            os.chown(directory, -1, group)
            directory.chmod(GROUP_READABLE | stat.S_ISGID)


def whose(path: Path) -> str:
    """For an error's end: to whom `path`, or the directory that hides it, belongs; "" if that is us."""
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            owner = place.stat().st_uid
            return "" if owner == os.geteuid() else f"; {place} belongs to {user_name(owner)}"
    return ""
