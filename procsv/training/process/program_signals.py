"""Signals to a training process: those that procsv hears, and those that the program handles itself.

Made by the bootstrap, before the program runs.  A signal that would end the process is heard instead, on the link's thread, whatever
the main thread does.  Once the program has installed a handler of its own, the signal is the program's: its handler runs as it would
without procsv, and procsv only captures the state.  A fork of the program's (a worker of multiprocessing, a loader of data) has
nothing of this: a signal to one is none to the run.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from typing import Any

from procsv.base.signals import PASSED_ON, Default
from procsv.ipc.messaging.start import Start

PLAIN = (0, 1)  # SIG_DFL and SIG_IGN, as addresses
_libc = ctypes.CDLL(None, use_errno=True)


class ProgramSignals:
    """On the main thread."""

    def __init__(self, start: Start) -> None:
        self._notices = start.settings.notice_signals
        self.fd, self._writer = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._writer, False)
        self._came: set[int] = set()
        ending = {signal.SIGHUP, *(number for number, default in PASSED_ON.items() if default is Default.GO_ON)}
        # Something that runs before the program, sitecustomize say, may have a handler already: that stays.
        self._before = {
            number: signal.signal(number, _heed)
            for number in (*self._notices, *ending)
            if not callable(was := signal.getsignal(number)) and (was is not signal.SIG_IGN or number in self._notices)
        }
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._of_python = {_address_of(number) for number in self._before}
        self._leave_forks_alone()

    # -- what has come -------------------------------------------------------------------------------------
    def take_notices(self) -> set[int]:
        """The signals that came since the last call and ask this process to end.

        One that procsv only keeps from ending it says nothing; one that the program handles is its own, but for a notice.
        """
        with contextlib.suppress(BlockingIOError):
            self._came.update(new := os.read(self.fd, 512))
            is_ours = signal.getsignal(signal.SIGHUP) is _heed
            return {number for number in new if number in self._notices or (number == signal.SIGHUP and is_ours)}
        return set()

    def was_noticed(self) -> bool:
        """Whether a notice has come, even one that nobody has read yet."""
        self.take_notices()
        return any(number in self._notices for number in self._came)

    # -- what is the program's -----------------------------------------------------------------------------
    def handles(self, number: int) -> bool:
        """Whether the program has a handler of its own for that signal."""
        shown = signal.getsignal(number)
        if callable(shown) and shown is not _heed:
            return True
        # A handler in C, faulthandler's for one, is nothing that Python knows of.  TensorFlow itself has one for SIGTERM.
        return number not in self._notices and _address_of(number) not in (*PLAIN, *self._of_python)

    def handled(self) -> int:
        """Those of the program, as bits."""
        return sum(1 << number for number in (*self._notices, *PASSED_ON) if self.handles(number))

    @property
    def handles_stop(self) -> bool:
        return any(self.handles(number) for number in self._notices)

    def ignore_notices(self) -> None:
        """One that comes while the interpreter ends must not change the exit."""
        for number in self._notices:
            signal.signal(number, signal.SIG_IGN)

    # -- forks ---------------------------------------------------------------------------------------------
    def _leave_forks_alone(self) -> None:
        """Gives each fork the handlers from before, where the program has not installed others."""
        forking, before, writer = threading.local(), self._before, self._writer

        def block() -> None:
            forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, before)

        def unblock() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, forking.mask)

        def forget() -> None:
            if (other := signal.set_wakeup_fd(-1)) != writer:
                signal.set_wakeup_fd(other)
            for number, old in before.items():
                if signal.getsignal(number) is _heed:
                    signal.signal(number, old)
            unblock()  # what has come since the fork is heard now

        os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=forget)


def _heed(*_: Any) -> None:
    """Only with a handler is a signal written to the descriptor."""


def _address_of(number: int) -> int:
    """Of the handler that the system calls; the first member of `struct sigaction` on Linux."""
    action = ctypes.create_string_buffer(256)
    if _libc.sigaction(number, None, action):
        return PLAIN[0]
    return int.from_bytes(action.raw[: ctypes.sizeof(ctypes.c_void_p)], sys.byteorder)
