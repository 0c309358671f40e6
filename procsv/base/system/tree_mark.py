"""Mark of a tree of processes: a variable in the environment, by which every descendant of a task is found.

Set by the watchdog for the programs that it starts, inherited by whatever these start, and read from /proc by a later launch, for
which orphans in sessions of their own are strangers else.  A process that was started with an empty environment, or may not be
read, has none.  A run within a run adds its mark to the one around it: it is part of both trees.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from procsv.base.system.processes import ExternalProcess

VARIABLE = "PROCSV_TREE"


def add_mark(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """`environment` for what is to be found by `mark`."""
    return {**environment, VARIABLE: ":".join((*_others(environment, mark), mark))}


def remove_mark(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """`environment` for what is not to be found by `mark`, even if we were started from such a tree ourselves."""
    others = _others(environment, mark)
    rest = {name: value for name, value in environment.items() if name != VARIABLE}
    return {**rest, VARIABLE: ":".join(others)} if others else rest


def _others(environment: Mapping[str, str], mark: str) -> list[str]:
    return [other for other in environment.get(VARIABLE, "").split(":") if other not in ("", mark)]


def find_marked(mark: str, spared: Collection[int] = ()) -> list[ExternalProcess]:
    """The live processes of ours with that mark, but for this one, those that it descends from, and the pids in `spared`.

    Each is to be closed.
    """
    from procsv.base.system.processes import ExternalProcess  # here: who only marks need not wait for psutil

    spared = {os.getpid(), *_parents(), *spared}
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        pid = int(directory.name)
        with contextlib.suppress(OSError):  # it is gone, or may not be read
            if pid in spared or directory.stat().st_uid != os.geteuid() or not _is_marked(directory, mark):
                continue
            process = ExternalProcess(pid)
            # Asked again now that the descriptor holds it: the pid may have become another's since.
            if not process.has_ended() and _is_marked(directory, mark):
                found.append(process)
            else:
                process.close()
    return found


def _is_marked(directory: Path, mark: str) -> bool:
    name = VARIABLE.encode() + b"="
    for entry in (directory / "environ").read_bytes().split(b"\0"):
        if entry.startswith(name):
            return mark.encode() in entry.removeprefix(name).split(b":")
    return False


def _parents() -> list[int]:
    import psutil

    with contextlib.suppress(psutil.Error):
        return [parent.pid for parent in psutil.Process().parents()]
    return []
