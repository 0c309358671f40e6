"""Services that are started before their run begins: they import what they need, and wait for a line that says which run.

Used by the watchdog of a program that procsv has not started, so that opening a session need not wait for interpreters.
Imports nothing that takes its time: this runs first of all.  A service that is not needed sees the end of its input, and ends.
"""

from __future__ import annotations

import os
import subprocess
import sys


class WarmServices:
    """An interpreter for each service, and the lifeline that they hold the reading end of."""

    def __init__(self, modules: dict[str, str], logdir: str) -> None:
        self.lifeline = os.pipe2(os.O_CLOEXEC)
        flags = ["-P"] if sys.flags.safe_path else []
        self._processes = {
            role: subprocess.Popen(
                [sys.executable, *flags, "-m", module, logdir],
                stdin=subprocess.PIPE,
                env={**os.environ, "PROCSV_START": "stdin"},
                pass_fds=(self.lifeline[0],),
                start_new_session=True,
            )
            for role, module in modules.items()
        }

    def take_process(self, role: str, start: str) -> subprocess.Popen[bytes] | None:
        """The process that is `role` from now on, told so; None if there is none, or it is dead."""
        process = self._processes.pop(role, None)
        if process is None:
            return None
        assert process.stdin is not None
        try:
            with process.stdin as line:
                line.write(start.encode() + b"\n")
        except OSError:
            process.wait()
            return None
        return process

    def close(self) -> None:
        """Those that nobody has taken end."""
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        self._processes.clear()
