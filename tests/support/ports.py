"""Reserve free ports for what a test starts later, so that no test that runs beside it takes them."""

from __future__ import annotations

import contextlib
import socket

PORTS = 16  # in a block


def hold_ports(held: contextlib.ExitStack) -> list[int]:
    """Return a block of free ports that no other caller gets while `held` is open.

    They are below the kernel's range for outgoing connections, so that no connection takes one.
    """
    for first in range(20_000, 32_000, PORTS):
        mark = held.enter_context(socket.socket(socket.AF_UNIX))
        with contextlib.suppress(OSError):
            mark.bind(f"\0procsv-test-ports-{first}")  # an abstract socket: nothing is left however its holder ends
            ports = list(range(first, first + PORTS))
            if all(map(_is_free, ports)):
                return ports
    raise RuntimeError("there are no free ports for a test")


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
