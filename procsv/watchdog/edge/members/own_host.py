"""The name by which other machines find this one."""

from __future__ import annotations

import os
import socket

DOCUMENTATION_ADDRESS = (
    "192.0.2.1",
    9,
)  # nobody has it (RFC 5737), and nothing is sent: only the way there is asked for


def own_host() -> str:
    """What PROCSV_HOST says; else this machine's name, if that is one that can be looked up, or the address of its way out."""
    told = os.environ.get("PROCSV_HOST", "")
    return told or (name if can_be_found(name := socket.gethostname()) else _own_address())


def can_be_found(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False
    return True


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(DOCUMENTATION_ADDRESS)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
