"""Give a run its own mount and process namespaces, as a container does. They need root."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

# `launched(logdir, …, launcher=FIRST_PROCESS)` makes the launch process 1 of a process namespace:
# its end ends all there.
FIRST_PROCESS = (
    *("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"),
    *(sys.executable, "-m", "procsv", "launch", "--logdir"),
)


@functools.cache
def why_not() -> str:
    """Return why namespaces cannot be made here, or "" if they can."""
    try:
        tried = subprocess.run(("unshare", "--mount", "--pid", "--fork", "true"), capture_output=True, text=True)
    except FileNotFoundError:
        return "namespaces are made by `unshare` of util-linux, which is not installed"
    return "" if tried.returncode == 0 else f"namespaces take the rights of root: {tried.stderr.strip()}"


def private(place: Path, directory: Path, *, own_processes: bool = False) -> tuple[str, ...]:
    """Return a launcher whose run sees `directory` at `place`, as with a private /tmp; with
    `own_processes` as in a container.
    """
    mounts = f"mount --make-rprivate / && mount --bind '{directory}' '{place}'"
    mounts += " && mount -t proc proc /proc" if own_processes else ""
    options = ("--pid", "--fork", "--kill-child") if own_processes else ()
    launch = (sys.executable, "-m", "procsv", "launch", "--logdir")
    return ("unshare", "--mount", *options, "sh", "-c", f'{mounts} && exec "$@"', "sh", *launch)
