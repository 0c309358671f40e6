"""Turn signals to the watchdog into bytes in a pipe, which a loop can wait for.

Used by launch.py and event_loop.py, on the main thread. The handlers do nothing: Python writes the
number of each signal to the pipe (`signal.set_wakeup_fd`), even during a long call. So none of
these signals ends the watchdog directly.
"""

from __future__ import annotations

import os
import select
import signal

from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.base.signals import IGNORED, PASSED_ON, STOPS, Default, default_of
from procsv.watchdog.core.events import SignalCame, StopAsked


class Signals:
    def __init__(self, notices: frozenset[signal.Signals] = frozenset({signal.SIGTERM})) -> None:
        """`notices`: the signals that announce a preemption."""
        self._notices = notices
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        ours = {*STOPS, *notices, *PASSED_ON, *IGNORED}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ours)  # the parent may have blocked some; we inherit its mask
        for number in ours:
            if number not in STOPS and number not in notices and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup or a shell has set this on purpose: a closed terminal does not end the run
            signal.signal(number, _nothing)
        self._count = 0  # of stop signals and notices so far

    def take_requests(self) -> list[StopAsked | SignalCame]:
        """Return the requests of the signals that have arrived since the last call.

        From the second stop signal on, each asks for an immediate end, except a preemption notice.
        """
        try:
            data = os.read(self.fd, 64)
        except BlockingIOError:
            return []
        found: list[StopAsked | SignalCame] = []
        for number in data:
            if number in STOPS or number in self._notices:
                is_notice = number in self._notices
                self._count += 1
                found.append(StopAsked(signal.Signals(number).name, self._count > 1 and not is_notice, is_notice))
            elif number in PASSED_ON or number in IGNORED:
                found.append(SignalCame(number))
        return found

    def wait(self, timeout_s: float) -> bool:
        return bool(select.select([self.fd], [], [], timeout_s)[0])

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._write_fd)


def _nothing(number: int, frame: object) -> None:
    """Do nothing. The signal's number is in the pipe, which wakes the loop."""


class StoppedBeforeStart(UserError):
    """A signal arrived, or the program to observe ended, before anything was started."""

    def __init__(self, source: str) -> None:
        super().__init__(f"{source}: stopped before anything was started", exit_code=exit_codes.RESUMABLE)


def wait_unless_stopped(signals: Signals, seconds: float) -> None:
    """Wait up to `seconds`. StoppedBeforeStart if a signal asks for the end.

    There is no program yet. So a signal that is normally passed on to the program has its default
    meaning here.
    """
    if not signals.wait(seconds):
        return
    for asked in signals.take_requests():
        if isinstance(asked, StopAsked):
            raise StoppedBeforeStart(asked.source)
        if default_of(asked.number) is not Default.GO_ON:
            raise StoppedBeforeStart(signal.Signals(asked.number).name)
