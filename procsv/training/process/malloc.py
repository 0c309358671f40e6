"""glibc's malloc, told to keep the memory of one training step for the next.

Called by the bootstrap before the program runs.  A step's tensors are blocks of megabytes; malloc's defaults give each back to the
system when it is freed, and the next step takes it again page by page, which on a CPU can be a fifth of its time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
MMAP_BYTES = 32 * 2**20  # blocks up to here come from the heap: the largest value that glibc takes
TRIM_BYTES = 2**30  # of free memory at the heap's end; above it, all is given back


def keep_memory(environment: Mapping[str, str]) -> bool:
    """Whether it was told: not where the user has a word with malloc himself, or it is another one."""
    is_told = any(name.startswith("MALLOC_") for name in environment) or "glibc.malloc" in environment.get(
        "GLIBC_TUNABLES", ""
    )
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if is_told or "malloc" in environment.get("LD_PRELOAD", "") or mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(M_TRIM_THRESHOLD, TRIM_BYTES))
