"""Write a checkpoint's data file from beginning to end in large blocks.

The bundle writer calls it on the disk thread.  It makes nothing durable; an fsync must follow.

For a large file, the page cache is the expensive part.  Its pages cost four times the processor
time of the transfer to the disk, and they displace pages that training uses.  So if the disk keeps
up, whole blocks bypass the page cache.  If the disk is slow, they go through the page cache, which
takes them immediately.
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
ALIGN_BYTES = 4096  # offset and size of a direct write must be multiples of this, on any disk
TRIAL_BYTES = 8 * BLOCK_BYTES  # after this much was written directly, decide whether the disk keeps up
DIRECT_MB_S_MIN = 300.0
# Each time the page cache holds this much new data, the disk is asked to begin to write it back.  An fdatasync in a
# separate thread would halve the speed instead, because each call commits the file's growing size.
BEHIND_BYTES = 2 * BLOCK_BYTES

# The last file's block, for the next file to reuse.  The kernel clears new memory, which costs as much as a checksum.
_spare: list[mmap.mmap] = []


class DataFile:
    """One file in the making.

    Killed at any time: the file has no index, and the next start sweeps its directory.
    """

    def __init__(self, path: Path) -> None:
        self.size = 0
        self._path, self._fd = path, disk.create(path)
        self._block, self._filled = _spare.pop() if _spare else _new_block(), 0
        self._told, self._given = xxhash.xxh3_128(), xxhash.xxh3_128()  # of the appended data; of what the disk took
        self._is_direct: bool | None = None  # None until the first whole block is written
        self._direct_bytes, self._direct_s = 0, 0.0
        self._begun_bytes = 0  # up to this offset, the disk has the bytes or was asked to write them back

    @property
    def is_direct(self) -> bool:
        """Whether the file bypassed the page cache.

        Its bytes were then checked as the disk took them, so it need not be read back.
        """
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
        """Writes the data that is still in the block; returns the size and sum of all appended data.

        WriteMismatch if the disk was given other bytes.
        """
        with memoryview(self._block) as block:
            whole = self._filled - self._filled % ALIGN_BYTES if self._is_direct else 0
            self._write_view(block[:whole])
            if self._is_direct:
                disk.set_direct(self._fd, False)  # the last piece is not a whole page
            self._write_view(block[whole : self._filled])
        if self._is_direct and self._given.digest() != self._told.digest():
            raise WriteMismatch(f"{self._path.name}: what was written is not what was to be written")
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
                self._leave_direct()  # this filesystem accepts the flag but not the write
        self._given.update(view)

    def _leave_direct(self) -> None:
        disk.set_direct(self._fd, False)
        self._is_direct = False
        self._begun_bytes = self._direct_bytes

    def _begin_behind(self) -> None:
        # Ask the disk to begin to write back what the page cache holds (see BEHIND_BYTES).
        written = self.size - self._filled
        if written - self._begun_bytes >= BEHIND_BYTES:
            disk.begin_writing_back(self._fd, self._begun_bytes, written - self._begun_bytes)
            self._begun_bytes = written


def _new_block() -> mmap.mmap:
    """Returns page-aligned memory for direct writes, in huge pages if the kernel has them.

    One huge page costs a fraction of a thousand small pages, on first use and in the disk's
    transfers.
    """
    block = mmap.mmap(-1, BLOCK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory gets no huge pages
    with contextlib.suppress(OSError, AttributeError):  # not every kernel or system has them
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


def keeps_up(size: int, seconds: float) -> bool:
    """Whether a disk that took `size` bytes in `seconds` is fast enough to wait for."""
    return size >= DIRECT_MB_S_MIN * 1e6 * seconds
