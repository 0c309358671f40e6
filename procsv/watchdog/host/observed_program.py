"""Observe the program that started this watchdog.

The program is our parent, not our child: it sends us messages on a channel, and we watch its pidfd.
The run treats it as the trainer. We cannot read the exit status of a parent. We only know what the
program reported when its session ended.
"""

from __future__ import annotations

import os
import select

from procsv.base.errors import UserError
from procsv.base.outcome import Exit
from procsv.base.system.process_state import descendants
from procsv.base.system.processes import ExternalProcess
from procsv.ipc.messaging.fd_channel import FdChannel
from procsv.ipc.messaging.fd_messages import OBSERVER_DECODER, Observe, Opened, ProgramLeft, Refused
from procsv.ipc.messaging.start import Start

STDIN = 0


class ObservedProgram:
    """The program, with the interface of `Child`."""

    def __init__(self, pid: int) -> None:
        """`pid`: our parent when we were started."""
        self.pid = pid
        self._process = ExternalProcess(pid)
        self._channel = FdChannel.inherited(os.dup(STDIN), OBSERVER_DECODER)
        self._news = select.epoll()
        self._news.register(self._channel.fd, select.EPOLLIN)
        self._is_gone = os.getppid() != pid  # our parent is dead, and another process may have its pid by now
        if not self._is_gone and self._process.pidfd >= 0:
            self._news.register(self._process.pidfd, select.EPOLLIN)
        self._start: Start | None = None  # the program sends it when its first session begins
        self._code: int | None = None  # the exit code that the program reported when its session ended

    @property
    def pidfd(self) -> int:
        """A descriptor that is readable when the program has ended, or has sent something."""
        return self._news.fileno()

    def wait_for_start(self) -> Start | None:
        """Sleep until the program's first session begins.

        Return its start, or None if there will be no session.
        """
        while not self.has_ended() and self._start is None:
            self._news.poll()
        return self._start

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s`, or less if the program sends something.

        Return whether the program is dead or its session is over.
        """
        self._news.poll(timeout_s)
        return self.has_ended()

    def opened(self, incarnation: int, heirs_fd: int) -> None:
        """Tell the program that its run is open, and pass it the lock on the logdir."""
        self._say(Opened(incarnation), (heirs_fd,))

    def refuse(self, error: UserError) -> None:
        self._say(Refused(str(error), error.exit_code, type(error).__name__ == "LogdirLocked"))

    def _say(self, word: Opened | Refused, files: tuple[int, ...] = ()) -> None:
        try:
            self._channel.send(word, files)
        except OSError:
            self._is_gone = True  # the program was killed, which its pidfd shows, too

    # -- as a Child ----------------------------------------------------------------------------------------
    def has_ended(self) -> bool:
        """Whether the program is dead, or its session is over."""
        self._hear()
        return self._is_gone or self._code is not None

    def _hear(self) -> None:
        try:
            while (received := self._channel.receive()) is not None:
                word, _ = received
                if isinstance(word, Observe):
                    self._start = Start.from_text(word.start)
                elif isinstance(word, ProgramLeft):
                    self._code = word.code
        except EOFError:
            self._is_gone = True  # the program is dead, or exec has replaced it and closed the channel
        self._is_gone = self._is_gone or self._process.has_ended()

    def signal(self, number: int) -> None:
        """Do nothing: the program has no handler of ours for any signal."""

    def signal_tree(self, number: int) -> None:
        """Signal the program and its descendants, except this watchdog and its own descendants."""
        me = os.getpid()
        self._process.signal_tree(number, sparing=frozenset({me, *(child.pid for child in descendants(me))}))

    def reap(self, *, spares_rest: bool = False) -> Exit:
        self._news.close()
        self._process.close()
        return Exit(self._code, None)
