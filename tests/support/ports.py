"""Free ports for what a test starts only later: nobody takes them meanwhile, whichever tests run at the same time."""

from __future__ import annotations

import contextlib
import socket

PORTS = 16  # of a block


def hold_ports(held: contextlib.ExitStack) -> list[int]:
    """A block of free ports that no other caller gets while `held` is open.

    They lie below those that the kernel gives to connections, so that none of these takes one of them meanwhile.
    """
    for first in range(20_000, 32_000, PORTS):
        mark = held.enter_context(socket.socket(socket.AF_UNIX))
        with contextlib.suppress(OSError):
            mark.bind(f"\0procsv-test-ports-{first}")  # no file: nothing is left of it, however its holder ends
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
