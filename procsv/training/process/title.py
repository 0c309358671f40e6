"""Command line of this process as `ps` shows it: a promoted standby reads `trainer`.

Called once, at the promotion.  It overwrites one word of the process's own argument memory with another of the same length.
If the system does not say where that memory is, the command line stays as it was.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_ARG_START, _ARG_END = 45, 46  # of /proc/self/stat, counted from the state letter


def replace_argument(old: str, new: str) -> None:
    """Replaces the first argument that is `old`, in `ps` and in sys.orig_argv."""
    if old not in sys.orig_argv or len(old) != len(new):
        return
    place = sys.orig_argv.index(old)
    sys.orig_argv[place] = new
    stat = Path("/proc/self/stat").read_text(errors="replace")
    fields = stat.rpartition(")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    if not start:
        return
    arguments = ctypes.string_at(start, end - start).split(b"\0")
    if place < len(arguments) and arguments[place] == old.encode():
        ctypes.memmove(start + sum(len(argument) + 1 for argument in arguments[:place]), new.encode(), len(new))
