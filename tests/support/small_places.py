"""Run in a small filesystem or in a cgroup: `within=small_filesystem(…)` or `within=in_cgroup(…)`.
Both need root.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

CLONE_NEWNS = 0x20000
MS_REC, MS_PRIVATE = 0x4000, 0x40000


def small_filesystem(place: Path | str, size: int, filler: int = 0) -> tuple[str, ...]:
    """Mount a filesystem of `size` bytes at `place` for the run alone. A file `filler` takes that many of them."""
    return (__file__, "mount", str(place), str(size), str(filler))


def in_cgroup(cgroup: Path) -> tuple[str, ...]:
    """Put the run and everything it starts into that cgroup."""
    return (__file__, "join", str(cgroup))


def mount(place: str, size: str, filler: str) -> None:
    """Mount it for this process and its children only."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(CLONE_NEWNS))
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    _check(libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, f"size={size}".encode()))
    if int(filler):
        Path(place, "filler").write_bytes(bytes(int(filler)))


def join(cgroup: str) -> None:
    Path(cgroup, "cgroup.procs").write_text("0")  # 0 is the process that writes


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
