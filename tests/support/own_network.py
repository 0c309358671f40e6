"""Give a run a network with only a loopback, which a test can cut and mend.

`launched(…, within=OWN_NETWORK)` runs in such a network; it needs root. A cut drops packets without
notice, as a lost machine does. Connections stay, and the kernel sends again what was lost once the
network is mended.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NEW_NETWORK = 0x40000000  # CLONE_NEWNET
READ_FLAGS, WRITE_FLAGS = 0x8913, 0x8914  # SIOCGIFFLAGS, SIOCSIFFLAGS
IS_UP = 1
SENT_AGAIN = 6  # the column of /proc/net/tcp that counts retransmissions

OWN_NETWORK = (__file__, "be_in_one")

_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str:
    """Return why a network cannot be made here, or "" if one can."""
    try:
        _in_a_thread(_leave_network)
    except OSError as error:
        return f"a network of its own takes the rights of root: {error.strerror}"
    return ""


def cut(pid: int) -> None:
    """Drop everything in the network of process `pid` until `mend`."""
    _in_a_thread(lambda: _set_loopback_of(pid, is_up=False))


def mend(pid: int) -> None:
    _in_a_thread(lambda: _set_loopback_of(pid, is_up=True))


def sent_again(pid: int) -> int:
    """Return the highest count of retransmissions of any connection in the network of `pid`."""
    rows = [row for name in ("tcp", "tcp6") for row in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
    return max((int(row.split()[SENT_AGAIN], 16) for row in rows), default=0)


def _in_a_thread(call: Callable[[], object]) -> None:
    """Call in a thread, which may be in another network than its process."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


def _leave_network() -> None:
    _check(_libc.unshare(NEW_NETWORK))


def _set_loopback_of(pid: int, *, is_up: bool) -> None:
    with Path(f"/proc/{pid}/ns/net").open() as network:
        _check(_libc.setns(network.fileno(), NEW_NETWORK))
    _set_loopback(is_up=is_up)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _set_loopback(*, is_up: bool) -> None:
    with socket.socket() as any_socket:
        asked = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(any_socket, READ_FLAGS, asked), 16)
        flags = flags | IS_UP if is_up else flags & ~IS_UP
        fcntl.ioctl(any_socket, WRITE_FLAGS, struct.pack("16sh14x", b"lo", flags))


def be_in_one() -> None:
    """Move this process and its later children to a network of their own."""
    _leave_network()
    _set_loopback(is_up=True)
