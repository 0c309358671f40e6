"""Change files in one place, so that a test can watch, break or replay the changes.

The checkpoint store, atomic_file.py and the fences of a logdir call this module as `disk.rename(…)`
and never import a function by name.  So if a test replaces a function here, the substitute takes
effect for all of them.
The first part has single operations of the system; the second part combines them.  OSError passes
through everything.  Reading does not go through here.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from procsv.base.system import progress_counter
from procsv.base.system.failpoints import declare, failpoint

declare("disk.full")

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # a full disk, and an exhausted quota
# Room for a checkpoint's index, meta and manifest, besides its tensors.  A disk with less free space counts as full.
ROOM_MARGIN_BYTES = 8 * 2**20
PROBE_BYTES = 2**16
COPY_BYTES = 4 * 2**20
_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)  # only Linux has it, and Python does not wrap it
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

# The functions that a test must replace to watch the disk.
CALLS = ("create", "write", "fsync", "fsync_path", "rename", "link", "unlink", "mkdir", "rmdir", "truncate")


# -- operations -----------------------------------------------------------------------------------------------
def create(path: Path, mode: int = 0o666, *, replace: bool = False) -> int:
    """Creates a file for writing and returns its descriptor.

    `replace`: remove an older file first; without it, FileExistsError.  It never follows a symbolic
    link, which might lead anywhere if others can write to the directory.
    """
    failpoint("disk.full")
    if replace:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def write(fd: int, data: bytes | memoryview) -> int:
    """Appends to a file; returns how many bytes the system took."""
    failpoint("disk.full")
    with progress_counter.untracked():
        return os.write(fd, data)


def fsync(fd: int) -> None:
    """Syncs a file.  After a failure the data is lost: discard the file and never sync it again."""
    with progress_counter.untracked():
        os.fsync(fd)


def fsync_path(path: Path) -> None:
    """Syncs the contents of a file, or the names in a directory."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with progress_counter.untracked():
            os.fsync(fd)
    finally:
        os.close(fd)


def rename(source: Path, target: Path) -> None:
    """Renames `source`, replacing `target` if it exists."""
    os.rename(source, target)  # noqa: PTH104  the call itself
    progress_counter.advance()


def link(source: Path, target: Path) -> None:
    os.link(source, target)


def unlink(path: Path) -> None:
    os.unlink(path)  # noqa: PTH108
    progress_counter.advance()


def mkdir(path: Path) -> None:
    os.mkdir(path)  # noqa: PTH102


def rmdir(path: Path) -> None:
    os.rmdir(path)  # noqa: PTH106


def truncate(path: Path, size: int) -> None:
    os.truncate(path, size)


def begin_writing_back(fd: int, offset: int, size: int) -> None:
    """Lets the disk begin to write a range of a file, without waiting.

    It is only a hint: it guarantees nothing and reports no errors.  An fsync must follow.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, offset, size, _SYNC_FILE_RANGE_WRITE)


def set_direct(fd: int, on: bool) -> bool:
    """Lets writes bypass the page cache, whole pages at a time.

    `on` False: lets writes go through the page cache again.  Returns False if the filesystem does
    not support it.
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
    except OSError:
        return False
    return True


# -- combinations ---------------------------------------------------------------------------------------------
def write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[write(fd, view) :]


def write_file(path: Path, pieces: Iterable[bytes], mode: int = 0o666, *, durable: bool, replace: bool = False) -> None:
    """Writes a file with these contents.  `durable`: sync them, but not the file's name."""
    fd = create(path, mode, replace=replace)
    try:
        for piece in pieces:
            write_all(fd, piece)
        if durable:
            fsync(fd)
    finally:
        os.close(fd)


def copy(source: Path, target: Path) -> None:
    """Copies a file's contents, but not its metadata."""
    with source.open("rb") as file:
        write_file(target, iter(lambda: file.read(COPY_BYTES), b""), durable=False)


def link_or_copy(source: Path, target: Path) -> None:
    try:
        link(source, target)
    except OSError:  # another filesystem, or one without hard links
        copy(source, target)


def unlink_if_there(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        unlink(path)


def has_room(directory: Path) -> bool:
    """Whether files can be written in `directory`: its disk and the user's quota have room.

    Returns True if the directory cannot be checked, because then something else is wrong with it.
    """
    try:
        if free_bytes(directory) < ROOM_MARGIN_BYTES:
            return False
        with tempfile.TemporaryFile(dir=directory, prefix=".room") as probe:  # a quota shows only in a write
            os.posix_fallocate(probe.fileno(), 0, PROBE_BYTES)
    except OSError as error:
        return error.errno not in NO_ROOM
    return True


def free_bytes(directory: Path) -> int:
    """Returns the space that a user without privileges may use.  OSError if it cannot be read.

    A filesystem that does not say how large it is has room for anything: ramfs, tmpfs without a
    limit, some FUSE ones.
    """
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize if found.f_blocks else sys.maxsize


def make_dirs(path: Path) -> None:
    """Creates a directory and its missing parents, and syncs the names of the new ones."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):
            mkdir(directory)
        fsync_path(directory.parent)


def remove_tree(path: Path) -> None:
    """Removes a directory with everything in it, if it exists."""
    try:
        entries = list(os.scandir(path))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove_tree(path / entry.name)
        else:
            unlink_if_there(path / entry.name)
    rmdir(path)


def try_to_remove_tree(path: Path) -> None:
    """Removes a directory if it can.

    Use it where the directory is harmless, and a later call tries again.
    """
    with contextlib.suppress(OSError):
        remove_tree(path)


def fsync_files(directory: Path) -> None:
    """Syncs the contents of all files in a directory, but not their names."""
    for entry in sorted(os.scandir(directory), key=lambda e: e.name):
        if stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
            fsync_path(directory / entry.name)
