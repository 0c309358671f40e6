"""The processes that hold ports of this machine, for the words of an error.  By psutil; other users' have no name without root."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import psutil

from procsv.base.terminal import printable

SHOWN = 3  # holders that are named, those of most ports first


def name_port_holders(port: int = 0) -> str:
    """Those of one port, or of any: "process 71 (nginx)", with how many ports each has where all are asked for; "" if nobody is seen."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:
        return ""
    bound = {(c.pid, c.laddr.port) for c in connections if c.laddr and c.status != psutil.CONN_TIME_WAIT}
    held = Counter(pid for pid, bound_port in bound if not port or bound_port == port)
    return ", ".join(_name_all(held.most_common(SHOWN), says_count=not port))


def _name_all(holders: Iterable[tuple[int | None, int]], *, says_count: bool) -> Iterable[str]:
    for pid, count in holders:
        ports = f" with {count} port{'s' if count > 1 else ''}" if says_count else ""
        yield f"{_name(pid)}{ports}"


def _name(pid: int | None) -> str:
    if pid is None:
        return "a process of another user"
    try:
        return f"process {pid} ({printable(psutil.Process(pid).name())})"
    except psutil.Error:  # it has ended meanwhile, or is not ours to look at
        return f"process {pid}"
