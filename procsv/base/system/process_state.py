"""Read the state of processes and threads from /proc.

`tree_activity` shows whether a program's threads have run.  It leaves out the threads of procsv and
of ZeroMQ, and recognises them by name: `name_own_thread` names procsv's, and ZeroMQ names its own.
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
    """Returns the state letter of a process or thread, and its start in seconds since boot.

    psutil.NoSuchProcess if it is gone.
    """
    try:
        text = Path(directory, "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    fields = text.rpartition(")")[2].split()  # the name in the parentheses may contain anything
    return fields[0], int(fields[19]) / os.sysconf("SC_CLK_TCK")


def process_state(pid: int) -> str:
    """Returns the letter of a process's state in /proc: R, S, D, T …

    psutil.NoSuchProcess if the process is gone.
    """
    return read_stat(f"/proc/{pid}", pid)[0]


def thread_states(pid: int) -> set[str]:
    """Returns the state letters of a process's threads.

    psutil.NoSuchProcess if the process, or one of the threads, is gone.
    """
    return {read_stat(task, pid)[0] for task in Path(f"/proc/{pid}/task").iterdir()}


def has_open(pid: int, path: Path) -> bool:
    """Whether a process has the file open, removed or not.

    PermissionError for another user's process.  `path` may lead through a symbolic link, although
    /proc shows real paths.
    """
    real = os.path.realpath(path)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(fd).removesuffix(" (deleted)") == real:  # noqa: PTH115
                    return True
    return False


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except (psutil.Error, OSError):
        return []


def name_own_thread() -> None:
    """Marks the calling thread as one of procsv's, not the program's."""
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(OWN_NAME)


def tree_activity(pid: int) -> int | None:
    """Returns a number that changes when a thread of `pid` or of a descendant has run.

    None if that is not visible.  The count of context switches shows that a thread has run.  CPU
    time shows it for a thread that is never switched away.
    """
    seen: list[tuple[int, str]] = []
    for member in (pid, *(process.pid for process in descendants(pid))):
        with contextlib.suppress(OSError):  # it has just ended, or belongs to another user
            for task in Path(f"/proc/{member}/task").iterdir():
                with contextlib.suppress(OSError):
                    if (ran := _read_thread(task)) is not None:
                        seen.append((int(task.name), ran))
    return hash(tuple(sorted(seen))) if seen else None


def _read_thread(task: Path) -> str | None:
    """Returns how much and how often a thread has run, as text; None if it is not the program's."""
    head, _, tail = (task / "stat").read_text(errors="replace").rpartition(")")
    if head.partition("(")[2].startswith(_NOT_THE_PROGRAMS):
        return None
    user, system = tail.split()[11:13]
    switches = [line for line in (task / "status").read_text(errors="replace").splitlines() if "_ctxt_switches" in line]
    return " ".join((user, system, *switches))
