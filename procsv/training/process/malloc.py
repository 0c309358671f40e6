"""glibc's malloc, told to keep the memory of one training step for the next.

Called by the bootstrap before the program runs.  A step's tensors are blocks of megabytes; malloc's defaults give each back to the
system when it is freed, and the next step takes it again page by page, which on a CPU can be a fifth of its time.

Threads have arenas of their own, made of pieces of 64 MB, and a piece that becomes empty is given back whatever the thresholds say:
TensorFlow's threads took some tens of megabytes a step anew.  So they share arenas: one for each eight processors, as with one
alone the threads of a large machine would wait for each other.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of mallopt(3)
MMAP_BYTES = 32 * 2**20  # blocks up to here come from the heap: the largest value that glibc takes
TRIM_BYTES = 2**30  # of free memory at the heap's end; above it, all is given back
PROCESSORS_PER_ARENA = 8


def arenas_max() -> int:
    """How many arenas all threads share."""
    return max(1, len(os.sched_getaffinity(0)) // PROCESSORS_PER_ARENA)


def keep_memory(environment: Mapping[str, str]) -> bool:
    """Whether it was told: not where the user has a word with malloc himself, or it is another one."""
    is_told = any(name.startswith("MALLOC_") for name in environment) or "glibc.malloc" in environment.get(
        "GLIBC_TUNABLES", ""
    )
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if is_told or "malloc" in environment.get("LD_PRELOAD", "") or mallopt is None:
        return False
    wanted = ((M_MMAP_THRESHOLD, MMAP_BYTES), (M_TRIM_THRESHOLD, TRIM_BYTES), (M_ARENA_MAX, arenas_max()))
    return all(mallopt(parameter, value) for parameter, value in wanted)
