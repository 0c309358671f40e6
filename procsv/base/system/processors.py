"""Processors that this process, and what it starts, may use: those it may run on, or the share of them that its control group has.

A limit that cannot be read is no limit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def count_processors(root: Path = _GROUPS, membership: Path = _MEMBERSHIP) -> float:
    """How many; not always a whole number, nor 1 at least, in a container."""
    return min([len(os.sched_getaffinity(0)), *_quotas(root, membership)])


def _quotas(root: Path, membership: Path) -> Iterator[float]:
    """Of our control group, and of each above it, that has one; version 1 and 2."""
    with contextlib.suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            if controllers and "cpu" not in controllers.split(","):
                continue
            inside = Path(path.lstrip("/"))
            for place in (inside, *inside.parents):
                read = _read_old if controllers else _read_new
                # "max" and -1 are no limit, and the root has no such file.
                with contextlib.suppress(OSError, ValueError):
                    if (processors := read(root / "cpu" / place if controllers else root / place)) > 0:
                        yield processors


def _read_new(group: Path) -> float:
    quota, period = (group / "cpu.max").read_text().split()
    return int(quota) / int(period)


def _read_old(group: Path) -> float:
    quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    return quota / period
