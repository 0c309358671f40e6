"""Start services before their run begins.

The services import what they need, and wait to learn which run they serve. Used by the watchdog of
a program that procsv did not start, so that the program's session need not wait until the
interpreters of the services have started. This module imports nothing slow, because it runs before
everything else. A service that is not needed sees the end of its input, and ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys


class WarmServices:
    """An interpreter for each service, and the lifeline whose read end they hold."""

    def __init__(self, modules: dict[str, str], logdir: str) -> None:
        self.lifeline = os.pipe2(os.O_CLOEXEC)
        flags = ["-P"] if sys.flags.safe_path else []
        self._processes: dict[str, tuple[subprocess.Popen[bytes], socket.socket]] = {}
        for role, module in modules.items():
            ours, theirs = socket.socketpair()
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, *flags, "-m", module, logdir],
                    stdin=theirs.fileno(),
                    env={**os.environ, "PROCSV_START": "stdin"},
                    pass_fds=(self.lifeline[0],),
                    start_new_session=True,
                )
            self._processes[role] = process, ours

    def take_process(self, role: str, start: str, heirs_fd: int) -> subprocess.Popen[bytes] | None:
        """Send the start and the logdir's lock to the process for `role`, and return the process.

        None if there is no such process, if it is dead, or if it was taken before.
        """
        if role not in self._processes:
            return None
        process, line = self._processes.pop(role)
        from procsv.ipc.messaging.fd_channel import FdChannel  # costs nothing now: the watchdog has imported it
        from procsv.ipc.messaging.start import SERVE_DECODER, Serve

        try:
            with line:
                FdChannel(line, SERVE_DECODER).send(Serve(start), [heirs_fd])
        except OSError:
            process.wait()
            return None
        return process

    def close(self) -> None:
        """End the services that were not taken."""
        for _, line in self._processes.values():
            line.close()
        self._processes.clear()
