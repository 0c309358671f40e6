"""A checkpoint's data file, written from its beginning to its end in large blocks.

Called by the bundle writer, on the disk thread.  Makes nothing durable: the fsync that must follow does.

The page cache is the dear part of a large file: its pages cost four times the processor time of the disk's own transfer, and
push out what training has there.  So whole blocks go to the disk directly where the disk keeps up.  A slow one gets them through the page
cache, which takes them at once.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import time
from pathlib import Path

import xxhash

from procsv.base.run.manifest import FileSum
from procsv.base.system import disk
from procsv.services.checkpoint.core.facts import WriteMismatch

BLOCK_BYTES = 4 * 2**20
ALIGN_BYTES = 4096  # what a direct write's place and size are multiples of, on any disk
TRIAL_BYTES = 8 * BLOCK_BYTES  # so much written directly: then it is known whether the disk keeps up
DIRECT_MB_S_MIN = 300.0
# So much in the page cache: the disk begins with it, while the rest is being written.  An fdatasync at that place, on a thread of
# its own, halves the speed: it commits the file's growing size each time.
BEHIND_BYTES = 2 * BLOCK_BYTES

# The last file's block, for the next one: new memory is cleared first, which costs as much as a checksum.
_spare: list[mmap.mmap] = []


class DataFile:
    """One file in the making.  A kill at any time leaves a file without index, in a directory that is swept."""

    def __init__(self, path: Path) -> None:
        self.size = 0
        self._path, self._fd = path, disk.create(path)
        self._block, self._filled = _spare.pop() if _spare else _new_block(), 0
        self._told, self._given = xxhash.xxh3_128(), xxhash.xxh3_128()
        self._is_direct: bool | None = None  # None until a whole block is to be written
        self._direct_bytes, self._direct_s = 0, 0.0
        self._behind_bytes = self._begun_bytes = 0  # in the page cache; of them the disk was told to begin with

    @property
    def is_direct(self) -> bool:
        """Whether what the disk was given was looked at after it had it: then nothing is to be read back."""
        return self._is_direct is True

    def append_data(self, data: bytes) -> None:
        self.size += len(data)
        self._told.update(data)
        view = memoryview(data)
        while view:
            part = view[: BLOCK_BYTES - self._filled]
            self._block[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            view = view[len(part) :]
            if self._filled == BLOCK_BYTES:
                self._write_block()

    def finish_file(self) -> FileSum:
        """The size and sum of all that was appended; WriteMismatch if it is not what the disk was given."""
        with memoryview(self._block) as block:
            whole = self._filled - self._filled % ALIGN_BYTES if self._is_direct else 0
            self._write_view(block[:whole])
            if self._is_direct:
                disk.set_direct(self._fd, False)  # for the last piece, which is no whole page
            self._write_view(block[whole : self._filled])
        if self._is_direct and self._given.digest() != self._told.digest():
            raise WriteMismatch(f"{self._path.name}: the disk was given other bytes than were to be written")
        return FileSum(self.size, self._told.hexdigest())

    def close(self) -> None:
        os.close(self._fd)
        _spare[:] = [self._block]

    def _write_block(self) -> None:
        if self._is_direct is None:
            self._is_direct = disk.set_direct(self._fd, True)
        begun_s = time.monotonic()
        with memoryview(self._block) as block:
            self._write_view(block)
        self._filled = 0
        if self._is_direct:
            self._direct_bytes, self._direct_s = (
                self._direct_bytes + BLOCK_BYTES,
                self._direct_s + time.monotonic() - begun_s,
            )
            if self._direct_bytes == TRIAL_BYTES and not keeps_up(TRIAL_BYTES, self._direct_s):
                self._leave_direct()
        else:
            self._begin_behind()

    def _write_view(self, view: memoryview) -> None:
        left = view
        while left:
            try:
                left = left[disk.write(self._fd, left) :]
            except OSError as error:
                if not self._is_direct or error.errno != errno.EINVAL:
                    raise
                self._leave_direct()  # a filesystem that takes the flag and not the write
        self._given.update(view)

    def _leave_direct(self) -> None:
        disk.set_direct(self._fd, False)
        self._is_direct = False
        self._begun_bytes = self._direct_bytes

    def _begin_behind(self) -> None:
        written = self.size - self._filled
        if written - self._begun_bytes >= BEHIND_BYTES:
            disk.begin_writing_back(self._fd, self._begun_bytes, written - self._begun_bytes)
            self._begun_bytes = written


def _new_block() -> mmap.mmap:
    """Memory that begins with a page, as direct writes need it: of large pages, if there are any, which the disk's transfers and their
    first use cost a fraction of what a thousand small ones do.
    """
    block = mmap.mmap(-1, BLOCK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # what is shared gets none
    with contextlib.suppress(OSError, AttributeError):  # a kernel, or a system, that has none
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


def keeps_up(size: int, seconds: float) -> bool:
    """Whether a disk that took `size` bytes in `seconds` is fast enough to wait for."""
    return size >= DIRECT_MB_S_MIN * 1e6 * seconds
