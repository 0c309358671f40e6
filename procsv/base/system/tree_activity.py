"""Activity of a process tree: whether any thread of it has run, but for those of procsv.

Threads are told apart by their names in /proc: `name_own_thread` gives ours its own, ZeroMQ gives its threads theirs.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from procsv.base.system.processes import descendants

OWN_NAME = "procsv-link"  # at most 15 characters
_NOT_THE_PROGRAMS = (OWN_NAME, "ZMQbg/")


def name_own_thread() -> None:
    """Marks the thread that calls it as none of the program's."""
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(OWN_NAME)


def tree_activity(pid: int) -> int | None:
    """A number that changes whenever a thread of `pid` or of a descendant has run; None if that cannot be seen.

    A thread that has run was switched to; one that is never switched away uses CPU time.
    """
    seen: list[tuple[int, str]] = []
    for member in (pid, *(process.pid for process in descendants(pid))):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is somebody else's
            for task in Path(f"/proc/{member}/task").iterdir():
                with contextlib.suppress(OSError):
                    if (ran := _read_thread(task)) is not None:
                        seen.append((int(task.name), ran))
    return hash(tuple(sorted(seen))) if seen else None


def _read_thread(task: Path) -> str | None:
    """How much and how often a thread has run, as text; None of one that is not the program's."""
    head, _, tail = (task / "stat").read_text(errors="replace").rpartition(")")
    if head.partition("(")[2].startswith(_NOT_THE_PROGRAMS):
        return None
    user, system = tail.split()[11:13]
    switches = [line for line in (task / "status").read_text(errors="replace").splitlines() if "_ctxt_switches" in line]
    return " ".join((user, system, *switches))
