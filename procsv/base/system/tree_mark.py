"""Mark a tree of processes by a variable in the environment, and find every descendant of a task by it.

The watchdog sets the mark, the run's id, for the programs that it starts.  Whatever these start inherits it.  A later launch reads it from
/proc to find orphans in sessions of their own, and the watchdog tells by it which of the processes that fall to it are the run's.  A
process that was started with an empty environment, or may not be read, has no mark.  A run within a run adds its mark to the outer one: it
is part of both trees.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import psutil

from procsv.base.system.processes import ExternalProcess

VARIABLE = "PROCSV_TREE"


def has_mark(environ: bytes, mark: str) -> bool:
    """Whether an environment, as /proc has it, carries `mark`."""
    name = VARIABLE.encode() + b"="
    entries = [entry.removeprefix(name) for entry in environ.split(b"\0") if entry.startswith(name)]
    return any(mark.encode() in entry.split(b":") for entry in entries)


def is_of_run(environ: bytes, mark: str, *, holds_lock: bool, is_init: bool) -> bool:
    """Whether a process that fell to the watchdog, when its parent died, belongs to the run `mark`.

    `holds_lock`: it has inherited a lock of the run.  `is_init`: the watchdog is the first process of a container, so that everything
    falls to it, such as what `kubectl exec` left behind.  Otherwise only its own descendants do: one whose environment was emptied is the
    program's, and one with an environment and no mark belongs to a command of --on-event, or to the shell that became the watchdog.
    """
    return holds_lock or has_mark(environ, mark) or not (is_init or environ.strip(b"\0"))


def mount_namespace() -> str:
    """Ours, as /proc names it: a path means the same to all who are in it; "" if it cannot be read."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/mnt")  # noqa: PTH115
    return ""


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


def find_marked(mark: str) -> list[ExternalProcess]:
    """The live processes of ours with that mark, but for this one and those that it descends from.

    Only those in our mount namespace: a container that shares our /proc may have a copy of the run's directory, id and all, and what
    lives there is its own launch's to end.  Each is to be closed.
    """
    spared, mounts = {os.getpid(), *_parents()}, mount_namespace()
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        pid = int(directory.name)
        with contextlib.suppress(OSError):  # it is gone, or may not be read
            if pid in spared or directory.stat().st_uid != os.geteuid() or not _is_marked(directory, mark, mounts):
                continue
            process = ExternalProcess(pid)
            # Asked again now that the descriptor holds it: the pid may have become another's since.
            if not process.has_ended() and _is_marked(directory, mark, mounts):
                found.append(process)
            else:
                process.close()
    return found


def _is_marked(directory: Path, mark: str, mounts: str) -> bool:
    is_near = os.readlink(directory / "ns" / "mnt") == mounts  # noqa: PTH115
    return is_near and has_mark((directory / "environ").read_bytes(), mark)


def _parents() -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [parent.pid for parent in psutil.Process().parents()]
    return []
