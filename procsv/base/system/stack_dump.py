"""The stacks of a process, written by faulthandler: when it crashes, and when it is asked to.

`arm` is called by the trainer's bootstrap before anything of the user's runs, `arm_log` by a service first of all.  The
handlers work in C, in microseconds, whether or not another thread holds the GIL.  The watchdog sends the signal, and reads
what was written when the process is dead.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from procsv.base.signals import DUMP_SIGNAL

STDERR = 2
_files: list[FileIO] = []  # open as long as the process lives: the handlers know only their descriptors


def arm(path: Path) -> None:
    """From here on all stacks go to `path`, at DUMP_SIGNAL and at SIGSEGV, SIGFPE, SIGABRT, SIGBUS and SIGILL."""
    file = FileIO(path, "w")
    _files.append(file)
    _arm(file)


def arm_unless_armed(path: Path) -> Callable[[], None]:
    """As `arm`, for crashes alone, unless the program uses faulthandler itself; what undoes it."""
    if faulthandler.is_enabled():
        return lambda: None
    file = FileIO(path, "w")
    faulthandler.enable(file, all_threads=True)

    def disarm() -> None:
        faulthandler.disable()
        file.close()

    return disarm


def arm_log() -> None:
    """As `arm`, into what this process prints: its log."""
    _arm(STDERR)


def _arm(file: FileIO | int) -> None:
    faulthandler.enable(file, all_threads=True)
    faulthandler.register(DUMP_SIGNAL, file, all_threads=True, chain=False)
