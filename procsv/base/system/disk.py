"""The one gate for changes to a disk, so that a test can watch, break or replay them all.

Called as `disk.rename(…)` by the checkpoint store and by atomic_file.py, never by a name of its own, so that what stands in for
a call stands in everywhere.  The first part are the calls themselves, one operation of the system each; what comes
after is made of those.  OSError passes through everything.  Reading needs no gate.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from procsv.base.system import progress_counter
from procsv.base.system.failpoints import declare, failpoint

declare("disk.full")

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # a full disk, and a quota that is used up
ROOM_MARGIN_BYTES = (
    8 * 2**20
)  # beside the tensors of a checkpoint: index, meta, manifest; less free than that is a full disk
PROBE_BYTES = 2**16
COPY_BYTES = 4 * 2**20
_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)  # Linux alone has it, and Python has it not
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

# What a test that watches the disk has to stand in for.
CALLS = ("create", "write", "fsync", "fsync_path", "rename", "link", "unlink", "mkdir", "rmdir", "truncate")


# -- operations -----------------------------------------------------------------------------------------------
def create(path: Path, mode: int = 0o666, *, replace: bool = False) -> int:
    """A new file's descriptor, for writing; with `replace` an older one goes, without it FileExistsError.

    Never through a symbolic link: in a directory that others can write to, it might lead anywhere.
    """
    failpoint("disk.full")
    if replace:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def write(fd: int, data: bytes | memoryview) -> int:
    """Appends; how many bytes the system took."""
    failpoint("disk.full")
    with progress_counter.untracked():
        return os.write(fd, data)


def fsync(fd: int) -> None:
    """Once it has failed, what was written is lost: the file is thrown away, never synced again."""
    with progress_counter.untracked():
        os.fsync(fd)


def fsync_path(path: Path) -> None:
    """Of a file: its contents.  Of a directory: the names in it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with progress_counter.untracked():
            os.fsync(fd)
    finally:
        os.close(fd)


def rename(source: Path, target: Path) -> None:
    """Replaces `target` if it is there."""
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
    """Has the disk begin with what was written there, and waits for nothing.  A hint: it makes nothing certain, and says
    nothing of errors, which the fsync that must follow does.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, offset, size, _SYNC_FILE_RANGE_WRITE)


def set_direct(fd: int, on: bool) -> bool:
    """Has writes go to the disk past the page cache, from whole pages to whole pages, or through it again; False if the
    filesystem knows no such way.
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
    except OSError:
        return False
    return True


# -- made of them ---------------------------------------------------------------------------------------------
def write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[write(fd, view) :]


def write_file(path: Path, pieces: Iterable[bytes], mode: int = 0o666, *, durable: bool, replace: bool = False) -> None:
    """A file with these contents; `durable`: they are on the disk, though not yet its name."""
    fd = create(path, mode, replace=replace)
    try:
        for piece in pieces:
            write_all(fd, piece)
        if durable:
            fsync(fd)
    finally:
        os.close(fd)


def copy(source: Path, target: Path) -> None:
    """Copies what is in a file, not what is known of it."""
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
    """Whether files can be written in `directory`: there is room on its disk, and of the user's quota.

    A directory that cannot be looked at has room: something else is wrong with it.
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
    """For a user without privileges.  OSError if it cannot be looked at."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def make_dirs(path: Path) -> None:
    """Makes a directory and those above it that are missing; the names of the new ones are on the disk."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):
            mkdir(directory)
        fsync_path(directory.parent)


def remove_tree(path: Path) -> None:
    """Removes a directory with all in it; nothing if it is not there."""
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
    """For what harms nobody if it stays: the next who passes here tries again."""
    with contextlib.suppress(OSError):
        remove_tree(path)


def fsync_files(directory: Path) -> None:
    """The contents of all files in a directory, not their names."""
    for entry in sorted(os.scandir(directory), key=lambda e: e.name):
        if stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
            fsync_path(directory / entry.name)
