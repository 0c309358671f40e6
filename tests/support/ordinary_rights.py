"""A run without the right to write where modes forbid it, which root has: so that read-only is read-only.

`launched(logdir, *args, within=ORDINARY_RIGHTS)`.  For anybody else it changes nothing.
"""

from __future__ import annotations

import ctypes
import os

CAP_DAC_OVERRIDE, PR_CAPBSET_DROP = 1, 24
VERSION = 0x20080522  # of capget(2): each set is two words of 32 bits
EFFECTIVE, PERMITTED, INHERITABLE = 0, 1, 2  # the first word of each


def drop() -> None:
    """Of this process, and of what it starts: what a root executes has no more than the bounding set."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0))
    header, sets = (ctypes.c_uint32 * 2)(VERSION, 0), (ctypes.c_uint32 * 6)()
    _check(libc.capget(header, sets))
    for word in (EFFECTIVE, PERMITTED, INHERITABLE):
        sets[word] &= ~(1 << CAP_DAC_OVERRIDE)
    _check(libc.capset(header, sets))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


ORDINARY_RIGHTS = (__file__, "drop")
