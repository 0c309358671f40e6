"""Report to the service manager that started the watchdog (sd_notify).

Used by event_loop.py. A report is a datagram to NOTIFY_SOCKET. core/reporting/manager_news.py
decides what to report. The watchdog never waits: a datagram that cannot be sent is dropped.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

from procsv.base.run.run_file import RunFile
from procsv.watchdog.core.reporting.manager_news import ManagerNews, Standing

# These are for the watchdog only, so no child process gets them.
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class ServiceManager:
    """Reports to the service manager, if there is one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address  # "@": the abstract namespace
        self._news = ManagerNews(_watchdog_s(environment))
        self._socket: socket.socket | None = None
        if address.startswith(("/", "@")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)

    def notify(self, run: RunFile, now_s: float) -> None:
        if self._socket is None:
            return
        standing = Standing(**{name: getattr(run, name) for name in Standing.__struct_fields__})
        if lines := self._news.lines(standing, now_s):
            with contextlib.suppress(OSError, ValueError):  # it is gone or full, or its path is invalid
                self._socket.sendto("\n".join(lines).encode(errors="replace"), self._address)

    def tell_complete(self, text: str) -> None:
        """Report that the run was already complete, and close.

        READY=1 is sent, too, so that the manager does not take this for a failure to start.
        """
        if self._socket is not None:
            with contextlib.suppress(OSError, ValueError):
                self._socket.sendto(f"READY=1\nSTOPPING=1\nSTATUS={text}".encode(errors="replace"), self._address)
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """Return how long the watchdog may be silent before the manager kills it.

    None if the manager never does that, or if the variables are for another process.
    """
    limit, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not (limit.isascii() and limit.isdecimal() and int(limit)) or pid not in ("", str(os.getpid())):
        return None
    return int(limit) / 1e6


def without_manager(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` for a child, without the manager's variables.

    With them, the child could send messages that the manager takes for ours.
    """
    return {name: value for name, value in environment.items() if name not in VARIABLES}
