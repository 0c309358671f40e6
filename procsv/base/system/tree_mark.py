"""Mark a process tree by an environment variable, and find the tree's processes by it.

The mark is `RunPaths.id`, the id that all runs of a logdir have.  The watchdog sets it for the
programs that it starts, and their children inherit it.  A later launch reads it from /proc to find
orphans that have left their session by setsid.  The watchdog also uses it to tell which of the
orphans that become its children belong to the run.  A process that was started with an empty
environment, or that we may not inspect, has no mark.  A run within a run adds its mark to the outer
one, so its processes belong to both trees.
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
    """Whether an environment, in the format of /proc, contains `mark`."""
    name = VARIABLE.encode() + b"="
    entries = [entry.removeprefix(name) for entry in environ.split(b"\0") if entry.startswith(name)]
    return any(mark.encode() in entry.split(b":") for entry in entries)


def is_of_run(environ: bytes, mark: str, *, holds_lock: bool, is_init: bool) -> bool:
    """Whether an orphan that has become the watchdog's child belongs to the run with `mark`.

    `holds_lock`: the process has inherited a lock of the run.

    `is_init`: the watchdog is the first process of a container.  Then any orphan in the container
    becomes its child, such as what `kubectl exec` leaves.  If the watchdog is not the first
    process, its orphans are its own descendants.  An orphan with an empty environment must then
    come from the program.  An orphan with an environment but without the mark comes from a command
    of --on-event, or from the shell that has replaced itself by the watchdog (exec).
    """
    return holds_lock or has_mark(environ, mark) or not (is_init or environ.strip(b"\0"))


def mount_namespace() -> str:
    """Returns the name of our mount namespace in /proc; "" if it cannot be read.

    A path means the same to all processes in one mount namespace.
    """
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/mnt")  # noqa: PTH115
    return ""


def add_mark(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """Returns `environment` with `mark`, so that `find_marked` finds the processes that have it."""
    return {**environment, VARIABLE: ":".join((*_others(environment, mark), mark))}


def remove_mark(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """Returns `environment` without `mark`, even if this process itself has the mark.

    `find_marked` then skips the processes that get this environment.
    """
    others = _others(environment, mark)
    rest = {name: value for name, value in environment.items() if name != VARIABLE}
    return {**rest, VARIABLE: ":".join(others)} if others else rest


def _others(environment: Mapping[str, str], mark: str) -> list[str]:
    return [other for other in environment.get(VARIABLE, "").split(":") if other not in ("", mark)]


def find_marked(mark: str) -> list[ExternalProcess]:
    """Finds our user's live processes with that mark, except this one and its ancestors.

    Skips processes in other mount namespaces.  A container that shares our /proc may have a copy of
    the run's directory, with the same id, and its processes are not ours to end.  The caller must
    close each result.
    """
    spared, mounts = {os.getpid(), *_parents()}, mount_namespace()
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        pid = int(directory.name)
        with contextlib.suppress(OSError):  # it is gone, or may not be read
            if pid in spared or directory.stat().st_uid != os.geteuid() or not _is_marked(directory, mark, mounts):
                continue
            process = ExternalProcess(pid)
            # Check again now that the descriptor holds the process, because the pid may have been reused.
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
