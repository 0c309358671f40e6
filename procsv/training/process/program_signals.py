"""Signals to a training process: those that procsv handles, and those that the program handles.

The bootstrap makes a ProgramSignals before the program runs.  From then on, a signal that would
have ended the process reaches the link's thread, whatever the main thread does.  Once the program
installs its own handler, the signal belongs to the program: its handler runs as without procsv, and
procsv only captures the state.  A fork of the program (a multiprocessing worker, a data loader) has
none of this: a signal to a fork does not concern the run.
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
    """Signal handling of this process; only the main thread makes it and calls `ignore_notices`."""

    def __init__(self, start: Start) -> None:
        self._notices = start.settings.notice_signals
        self.fd, self._writer = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._writer, False)
        self._came: set[int] = set()
        ending = {signal.SIGHUP, *(number for number, default in PASSED_ON.items() if default is Default.GO_ON)}
        # Code that runs before the program, such as sitecustomize, may already have a handler,
        # which stays.
        self._before = {
            number: signal.signal(number, _heed)
            for number in (*self._notices, *ending)
            if not callable(was := signal.getsignal(number)) and (was is not signal.SIG_IGN or number in self._notices)
        }
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._of_python = {_address_of(number) for number in self._before}
        self._leave_forks_alone()

    # -- received signals --------------------------------------------------------------------------
    def take_notices(self) -> set[int]:
        """Returns the signals since the last call that ask this process to end.

        These are the notice signals, even if the program handles them, and SIGHUP if the program
        does not handle it.  procsv only keeps the other signals from ending the process.
        """
        with contextlib.suppress(BlockingIOError):
            self._came.update(new := os.read(self.fd, 512))
            is_ours = signal.getsignal(signal.SIGHUP) is _heed
            return {number for number in new if number in self._notices or (number == signal.SIGHUP and is_ours)}
        return set()

    def was_noticed(self) -> bool:
        """Whether a notice has arrived, even an unread one."""
        self.take_notices()
        return any(number in self._notices for number in self._came)

    # -- the program's signals ---------------------------------------------------------------------
    def handles(self, number: int) -> bool:
        """Whether the program has its own handler for that signal."""
        shown = signal.getsignal(number)
        if callable(shown) and shown is not _heed:
            return True
        # Python does not know of handlers in C, such as faulthandler's.  TensorFlow itself has one
        # for SIGTERM.
        return number not in self._notices and _address_of(number) not in (*PLAIN, *self._of_python)

    def handled(self) -> int:
        """The signals that the program handles, as bits."""
        return sum(1 << number for number in (*self._notices, *PASSED_ON) if self.handles(number))

    @property
    def handles_stop(self) -> bool:
        return any(self.handles(number) for number in self._notices)

    def ignore_notices(self) -> None:
        """Ignores notices while the interpreter exits, so that they do not change the exit code."""
        for number in self._notices:
            signal.signal(number, signal.SIG_IGN)

    # -- forks -------------------------------------------------------------------------------------
    def _leave_forks_alone(self) -> None:
        """Restores the earlier handlers in each fork, unless the program has installed others."""
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
            unblock()  # signals since the fork are now delivered

        os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=forget)


def _heed(*_: Any) -> None:
    """Does nothing.

    Python writes a signal's number to the wake-up descriptor only if the signal has a handler.
    """


def _address_of(number: int) -> int:
    """Address of the handler that the system calls; the first field of `struct sigaction`."""
    action = ctypes.create_string_buffer(256)
    if _libc.sigaction(number, None, action):
        return PLAIN[0]
    return int.from_bytes(action.raw[: ctypes.sizeof(ctypes.c_void_p)], sys.byteorder)
