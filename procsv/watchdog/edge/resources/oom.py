"""Memory limits: detect kills by the kernel for lack of memory, and a trainer above its limit.

Used by event_loop.py.  Reads the kernel's own counters; decides nothing about restarts.  An exit by SIGKILL alone is no
proof of anything: without a counter that rose, the sender is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import psutil

from procsv.base.units import show_size

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
# cgroup v2 and v1; the line `oom_kill N` is the same in both.
COUNTER_FILES = ("memory.events", "memory.oom_control")


def find_counters(membership: str, root: Path = CGROUPS) -> list[Path]:
    """The files that count kills in our cgroup and in those above it, ours first.  `membership`: /proc/self/cgroup."""
    found = []
    for line in membership.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        mounts = [root / "memory"] if controllers else [root, root / "unified"]
        for mount in mounts:
            inside = Path(path.lstrip("/"))
            for place in (inside, *inside.parents):
                found += [mount / place / name for name in COUNTER_FILES]
    return [file for file in dict.fromkeys(found) if file.is_file()]


def read_kills(counter: Path) -> int | None:
    """The number of processes that the kernel killed there for lack of memory; None if unknown."""
    try:
        text = counter.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None


@dataclass(slots=True)
class KillCounters:
    """The counters of our cgroups, read before and after: each kill is evidence for one death."""

    counters: list[Path]
    _before: dict[Path, int] = field(default_factory=dict)

    @staticmethod
    def of_this_process() -> KillCounters:
        try:
            counters = find_counters(MEMBERSHIP.read_text())
        except OSError:
            counters = []
        made = KillCounters(counters)
        made.news()
        return made

    def news(self) -> str:
        """What has been counted since the last call, in words; "" if nothing was."""
        told = ""
        for counter in self.counters:
            now, before = read_kills(counter), self._before.get(counter)
            if now is None:
                continue
            self._before[counter] = now
            if before is not None and now > before and not told:
                told = f"killed by the kernel (oom_kill {before} -> {now} in {counter})"
        return told


def tree_rss(pid: int) -> int:
    """Resident bytes of a process and all that descends from it."""
    total = 0
    try:
        process = psutil.Process(pid)
        members = [process, *process.children(recursive=True)]
    except (psutil.Error, OSError):
        return 0
    for member in members:
        try:
            total += member.memory_info().rss
        except (psutil.Error, OSError):
            continue
    return total


def host_memory() -> dict[str, int]:
    """Bytes of the machine's memory: all of it, and what is to be had."""
    memory = psutil.virtual_memory()
    return {"total": memory.total, "available": memory.available}


def over_limit(rss: int, limit: int) -> str:
    """Why a trainer is to be restarted, or "" if it keeps to its limit (0: there is none)."""
    if not limit or rss <= limit:
        return ""
    return f"it uses {show_size(rss)} of memory, and may use {show_size(limit)}"
