"""Free memory for one more process: the machine's, or what the control group leaves, if that is less.

Used by event_loop.py.  A limit that cannot be read is no limit.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from procsv.watchdog.edge.resources.oom import host_memory, tree_rss

_GROUPS = Path("/sys/fs/cgroup")


class MachineMemory:
    """The watchdog's port to what memory there is, and who uses it."""

    def tree_rss(self, pid: int) -> int:
        return tree_rss(pid)

    def room_for_standby(self, trainer_pid: int, limit: int) -> int:
        """Free bytes; what the trainer may still use of its limit (0: it has none) counts as used."""
        return room_bytes() - (max(0, limit - tree_rss(trainer_pid)) if limit else 0)

    def host_memory(self) -> dict[str, int]:
        return host_memory()


def room_bytes() -> int:
    return min([psutil.virtual_memory().available, *_left_in_groups()])


def _left_in_groups() -> list[int]:
    """What is left in our control group (version 2) and in each above it that has a limit."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        name = next((n for line in Path("/proc/self/cgroup").read_text().splitlines() if (n := _unified(line))), "")
        group = _GROUPS / name.lstrip("/")
        for directory in (group, *group.parents):
            if directory.is_relative_to(_GROUPS):
                with contextlib.suppress(OSError, ValueError):  # "max" is no number, and the root has no such file
                    found.append(_left_in(directory))
    return found


def _unified(line: str) -> str:
    return line.partition("::")[2] if line.startswith("0::") else ""


def _left_in(group: Path) -> int:
    limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return limit - used + int(stat.get("inactive_file", 0))  # cached files make way
