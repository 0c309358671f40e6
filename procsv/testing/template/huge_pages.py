"""Memory in huge pages: a fork of this process, and the end of that, have fewer pages to go through.

Used by host.py before it forks.  Half of what a short run costs the kernel is to copy, and to give back, page tables of what the
template has imported.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

HUGE_BYTES = 2**21
MADV_COLLAPSE = 25  # since Linux 6.1, whatever the machine's setting for huge pages is


def use_huge_pages() -> int:
    """Moves the anonymous memory of this process into huge pages; returns how many bytes.

    0 where the kernel cannot, or has none to give: all stays as it was.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    moved = 0
    for start, end in _writable():
        start, end = -(-start // HUGE_BYTES) * HUGE_BYTES, end // HUGE_BYTES * HUGE_BYTES
        if start < end and not libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE):
            moved += end - start
    return moved


def _writable() -> list[tuple[int, int]]:
    """Address ranges of memory that is nobody else's and no file's."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, _, _, inode, *_ = line.split()
        if rights == "rw-p" and inode == "0" and "[stack" not in line:
            start, _, end = place.partition("-")
            found.append((int(start, 16), int(end, 16)))
    return found
