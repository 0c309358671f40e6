"""Measure the machine's memory and processors, and how much of them a process tree uses.

If our control group may use less than the machine has, the group's limit applies. A limit that
cannot be read is ignored.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from procsv.base.system.process_state import tree_activity
from procsv.base.units import show_size

_GROUPS, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


class MachineMemory:
    """The watchdog's port to the memory of the machine."""

    def tree_memory(self, pid: int, limit: int) -> int:
        """Return the bytes that a process and all its descendants use.

        A fork shares pages with its parent, so the plain sum over the processes counts such pages
        twice. To count them once, the kernel must visit every page. That is slow, so it is done
        only if the plain sum is above `limit`.
        """
        members: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            members = [process, *process.children(recursive=True)]
        used = sum(_resident(member) for member in members)
        return used if used <= limit or len(members) < 2 else sum(_proportional(member) for member in members)

    def tree_activity(self, pid: int) -> int | None:
        return tree_activity(pid)

    def room_for_standby(self, trainer_pid: int, limit: int) -> int:
        """Return the bytes that a standby may use.

        These are the free bytes, without those that the trainer may still use up to its `limit`
        (0: no limit).
        """
        free = min([psutil.virtual_memory().available, *_free_in_groups()])
        return free - (max(0, limit - self.tree_memory(trainer_pid, limit)) if limit else 0)

    def host_memory(self) -> dict[str, int]:
        """Return the bytes of the machine's memory: the total, and what is available."""
        memory = psutil.virtual_memory()
        return {"total": memory.total, "available": memory.available}


def _resident(process: psutil.Process) -> int:
    """Return the bytes of a process, including all that it shares (RSS); 0 if it is gone."""
    with contextlib.suppress(psutil.Error, OSError):
        return int(process.memory_info().rss)
    return 0


def _proportional(process: psutil.Process) -> int:
    """Return the bytes of a process, with only its part of each shared page (PSS)."""
    with contextlib.suppress(psutil.Error, OSError):
        return int(process.memory_full_info().pss)
    return _resident(process)


def over_limit(used: int, limit: int) -> str:
    """Say why a trainer must be restarted, or "" if it is within its limit (0: no limit)."""
    if not limit or used <= limit:
        return ""
    return f"it uses {show_size(used)} of memory, and may use {show_size(limit)}"


def _free_in_groups() -> list[int]:
    """Return the free bytes of our control group (version 2) and of each parent with a limit."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        name = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
        group = _GROUPS / name.lstrip("/")
        for directory in (group, *group.parents):
            if directory.is_relative_to(_GROUPS):
                with contextlib.suppress(OSError, ValueError):  # "max" means no limit; the root has no such file
                    found.append(_free_in(directory))
    return found


def _free_in(group: Path) -> int:
    limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return limit - used + int(stat.get("inactive_file", 0))  # cached files can be evicted


def count_processors(root: Path = _GROUPS, membership: Path = _MEMBERSHIP) -> float:
    """Return how many processors this process and its children may use.

    In a container, this may be a fraction, even below 1.
    """
    return min([len(os.sched_getaffinity(0)), *_quotas(root, membership)])


def _quotas(root: Path, membership: Path) -> Iterator[float]:
    """Yield the quota of our control group, and of each parent with a quota (versions 1 and 2)."""
    with contextlib.suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            if controllers and "cpu" not in controllers.split(","):
                continue
            inside = Path(path.lstrip("/"))
            for place in (inside, *inside.parents):
                read = _read_old if controllers else _read_new
                # "max" and -1 mean no limit, and the root has no such file.
                with contextlib.suppress(OSError, ValueError):
                    if (processors := read(root / "cpu" / place if controllers else root / place)) > 0:
                        yield processors


def _read_new(group: Path) -> float:
    quota, period = (group / "cpu.max").read_text().split()
    return int(quota) / int(period)


def _read_old(group: Path) -> float:
    quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    return quota / period
