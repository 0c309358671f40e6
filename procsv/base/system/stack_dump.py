"""Dump the stacks of a process with faulthandler, when it crashes or when the watchdog asks.

The trainer's bootstrap calls `arm` before any of the user's code runs; a service calls `arm_log`
first of all.  The handlers run in C, in microseconds, even if another thread holds the GIL.

Reading the frames of other running threads may crash the process, and faulthandler comes to the
main thread last.  So the watchdog first asks the main thread for its own stack (MAIN_DUMP_SIGNAL),
then for all stacks (DUMP_SIGNAL).  It reads the dump when the process is dead.
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
    """The file for the stacks.

    It stays open while it is armed, because the handlers know only its descriptor.
    """

    def __init__(self, path: Path, *, takes_signals: bool) -> None:
        """`takes_signals`: dump also at DUMP_SIGNAL and MAIN_DUMP_SIGNAL, not only at a crash."""
        self._path, self._takes_signals = path, takes_signals
        self._file: FileIO | None = None
        self.renew_file()

    def renew_file(self) -> None:
        """Opens a new file if there is none, or if somebody has removed it.

        If none can be opened, keeps the removed file.  If there was none before, dumps to standard
        error.
        """
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
    """Dumps stacks to `path` from now on.

    All stacks at DUMP_SIGNAL, SIGSEGV, SIGFPE, SIGABRT, SIGBUS and SIGILL; at MAIN_DUMP_SIGNAL only
    the stack of the thread that gets the signal.
    """
    return DumpFile(path, takes_signals=True)


def arm_unless_armed(path: Path) -> DumpFile | None:
    """Like `arm`, but dumps only at crashes.

    Does nothing and returns None if the program uses faulthandler itself.
    """
    return None if faulthandler.is_enabled() else DumpFile(path, takes_signals=False)


def arm_log() -> None:
    """Like `arm`, but dumps to standard error, which is this process's log."""
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
