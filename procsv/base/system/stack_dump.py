"""The stacks of a process, written by faulthandler: when it crashes, and when it is asked to.

`arm` is called by the trainer's bootstrap before anything of the user's runs, `arm_log` by a service first of all.  The
handlers work in C, in microseconds, whether or not another thread holds the GIL.  The watchdog sends the signal, and reads
what was written when the process is dead.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
from io import FileIO
from pathlib import Path

from procsv.base.signals import DUMP_SIGNAL

STDERR = 2


class DumpFile:
    """The file that stacks go to.  It is open as long as it is armed: the handlers know only its descriptor."""

    def __init__(self, path: Path, *, takes_signal: bool) -> None:
        """`takes_signal`: at DUMP_SIGNAL, too, and not only at a crash."""
        self._path, self._takes_signal = path, takes_signal
        self._file: FileIO | None = None
        self.restore()

    def restore(self) -> None:
        """Goes on in a new file if there is none, or somebody has removed it; as long as there can be none, in the log."""
        if self._file is not None and _is_in_place(self._file, self._path):
            return
        before = self._file
        with contextlib.suppress(OSError):
            self._file = FileIO(self._path, "w")
        if self._file is before and before is not None:
            return
        _arm(self._file or STDERR, takes_signal=self._takes_signal)
        if before is not None:
            before.close()

    def disarm(self) -> None:
        faulthandler.disable()
        if self._file is not None:
            self._file.close()


def arm(path: Path) -> DumpFile:
    """From here on all stacks go to `path`, at DUMP_SIGNAL and at SIGSEGV, SIGFPE, SIGABRT, SIGBUS and SIGILL."""
    return DumpFile(path, takes_signal=True)


def arm_unless_armed(path: Path) -> DumpFile | None:
    """As `arm`, for crashes alone, unless the program uses faulthandler itself."""
    return None if faulthandler.is_enabled() else DumpFile(path, takes_signal=False)


def arm_log() -> None:
    """As `arm`, into what this process prints: its log."""
    _arm(STDERR, takes_signal=True)


def _arm(file: FileIO | int, *, takes_signal: bool) -> None:
    faulthandler.enable(file, all_threads=True)
    if takes_signal:
        faulthandler.register(DUMP_SIGNAL, file, all_threads=True, chain=False)


def _is_in_place(file: FileIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False
