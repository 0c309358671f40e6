"""State of processes and threads, as /proc tells it, and whether any thread of a tree has run, but for those of procsv.

The threads of procsv are told apart by their names: `name_own_thread` gives ours its own, ZeroMQ gives its threads theirs.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import psutil

OWN_NAME = "procsv-link"  # at most 15 characters
_NOT_THE_PROGRAMS = (OWN_NAME, "ZMQbg/")


def read_stat(directory: Path | str, pid: int) -> tuple[str, float]:
    """The state letter and the start, in seconds from the boot, of a process or thread; psutil.NoSuchProcess if it is gone."""
    try:
        text = Path(directory, "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return fields[0], int(fields[19]) / os.sysconf("SC_CLK_TCK")


def process_state(pid: int) -> str:
    """The letter of its state in /proc: R, S, D, T …; psutil.NoSuchProcess if it is gone."""
    return read_stat(f"/proc/{pid}", pid)[0]


def thread_states(pid: int) -> set[str]:
    """The letters of all its threads; psutil.NoSuchProcess if it, or one of them, is gone."""
    return {read_stat(task, pid)[0] for task in Path(f"/proc/{pid}/task").iterdir()}


def has_open(pid: int, path: Path) -> bool:
    """Whether a process has the file of that path open, removed or not; PermissionError of another user's process."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(fd).removesuffix(" (deleted)") == str(path):  # noqa: PTH115
                    return True
    return False


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except (psutil.Error, OSError):
        return []


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
