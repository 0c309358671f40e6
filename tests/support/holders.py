"""Which processes of a tree hold a lock that is inherited."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil


def holders(path: Path, root: int) -> set[int]:
    """The pids in the tree of `root` that have `path` open by a descriptor with a lock."""
    found = set()
    for process in [psutil.Process(root), *psutil.Process(root).children(recursive=True)]:
        for fd in _descriptors(process.pid):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile: not a file that is held
                is_locked = "FLOCK" in (fd.parents[1] / "fdinfo" / fd.name).read_text()
                if is_locked and os.readlink(fd) == str(path):  # noqa: PTH115
                    found.add(process.pid)
    return found


def _descriptors(pid: int) -> list[Path]:
    """None, of a process that has ended since it was listed."""
    with contextlib.suppress(FileNotFoundError):
        return list(Path(f"/proc/{pid}/fd").iterdir())
    return []
