"""Find the processes of a tree that hold an inherited lock."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil


def holders(path: Path, root: int) -> set[int]:
    """Return the pids in the tree of `root` that have `path` open through a locked descriptor."""
    found = set()
    for process in [psutil.Process(root), *psutil.Process(root).children(recursive=True)]:
        for fd in _descriptors(process.pid):
            with contextlib.suppress(FileNotFoundError):  # closed in the meantime: not held
                is_locked = "FLOCK" in (fd.parents[1] / "fdinfo" / fd.name).read_text()
                if is_locked and os.readlink(fd) == str(path):  # noqa: PTH115
                    found.add(process.pid)
    return found


def _descriptors(pid: int) -> list[Path]:
    """Return the descriptors of a process, or none if it has exited."""
    with contextlib.suppress(FileNotFoundError):
        return list(Path(f"/proc/{pid}/fd").iterdir())
    return []
