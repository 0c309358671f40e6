"""Kills by the kernel for lack of memory, from the kernel's own counters.

Used by post_mortem.py.  An exit by SIGKILL alone is no proof of anything: without a counter that rose, the sender is unknown.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

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


class KillCounters(msgspec.Struct):
    """The counters of our cgroups, read before and after: each kill is evidence for one death."""

    counters: list[Path]
    _before: dict[Path, int] = msgspec.field(default_factory=dict)

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
