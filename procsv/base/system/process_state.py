"""State of a process or thread, as /proc tells it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil


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
