"""The stacks of a process, written by faulthandler: when it crashes, and when it is asked to.

`arm` is called by the trainer's bootstrap before anything of the user's runs, `arm_log` by a service first of all.  The
handlers work in C, in microseconds, whether or not another thread holds the GIL.  Reading the frames of threads that run meanwhile
may crash the process, and the main thread comes last: so it is asked for its own stack first.  The watchdog sends the signals, and
reads what was written when the process is dead.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
from io import FileIO
from pathlib import Path

from procsv.base.signals import DUMP_SIGNAL, MAIN_DUMP_SIGNAL

STDERR = 2


class DumpFile:
    """The file that stacks go to.  It is open as long as it is armed: the handlers know only its descriptor."""

    def __init__(self, path: Path, *, takes_signals: bool) -> None:
        """`takes_signals`: at DUMP_SIGNAL and MAIN_DUMP_SIGNAL, too, and not only at a crash."""
        self._path, self._takes_signals = path, takes_signals
        self._file: FileIO | None = None
        self.renew_file()

    def renew_file(self) -> None:
        """Goes on in a new file if there is none, or somebody has removed it; as long as there can be none, in the log."""
        if self._file is not None and _is_in_place(self._file, self._path):
            return
        before = self._file
        with contextlib.suppress(OSError):
            self._file = FileIO(self._path, "w")
        if self._file is before and before is not None:
            return
        _arm(self._file or STDERR, takes_signals=self._takes_signals)
        if before is not None:
            before.close()

    def disarm(self) -> None:
        faulthandler.disable()
        if self._file is not None:
            self._file.close()


def arm(path: Path) -> DumpFile:
    """From here on all stacks go to `path`, at DUMP_SIGNAL and at SIGSEGV, SIGFPE, SIGABRT, SIGBUS and SIGILL, and that of the
    thread which gets it at MAIN_DUMP_SIGNAL.
    """
    return DumpFile(path, takes_signals=True)


def arm_unless_armed(path: Path) -> DumpFile | None:
    """As `arm`, for crashes alone, unless the program uses faulthandler itself."""
    return None if faulthandler.is_enabled() else DumpFile(path, takes_signals=False)


def arm_log() -> None:
    """As `arm`, into what this process prints: its log."""
    _arm(STDERR, takes_signals=True)


def _arm(file: FileIO | int, *, takes_signals: bool) -> None:
    faulthandler.enable(file, all_threads=True)
    if takes_signals:
        faulthandler.register(DUMP_SIGNAL, file, all_threads=True, chain=False)
        faulthandler.register(MAIN_DUMP_SIGNAL, file, all_threads=False, chain=False)


def _is_in_place(file: FileIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False
