"""Take from root the rights that spoil a test: to write read-only files, or to look into any
process.

`launched(logdir, *args, within=ORDINARY_RIGHTS)` uses it. For any other user it changes nothing.
"""

from __future__ import annotations

import ctypes
import os

CAP_DAC_OVERRIDE, CAP_SYS_PTRACE, PR_CAPBSET_DROP = 1, 19, 24
VERSION = 0x20080522  # for capget(2): each set is two words of 32 bits
EFFECTIVE, PERMITTED, INHERITABLE = 0, 1, 2  # the first word of each


def drop(capability: str) -> None:
    """Drop the capability from this process and what it starts. A program that root executes gets
    no more than the bounding set.
    """
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(PR_CAPBSET_DROP, int(capability), 0, 0, 0))
    header, sets = (ctypes.c_uint32 * 2)(VERSION, 0), (ctypes.c_uint32 * 6)()
    _check(libc.capget(header, sets))
    for word in (EFFECTIVE, PERMITTED, INHERITABLE):
        sets[word] &= ~(1 << int(capability))
    _check(libc.capset(header, sets))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


ORDINARY_RIGHTS = (__file__, "drop", str(CAP_DAC_OVERRIDE))
LOOKS_AT_OWN = (__file__, "drop", str(CAP_SYS_PTRACE))  # it cannot look into processes that are not dumpable
