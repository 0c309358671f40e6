"""The last of `procsv launch`: the process becomes the watchdog, or a member of a run on several machines.

Used by launch.py.  The watchdog is not a new interpreter: half of what it imports is here already, and the program waits for it.
"""

from __future__ import annotations

import os
import sys

import msgspec

from procsv.base.placement import MOVED, BeginAgain, Placement
from procsv.ipc.messaging.start import Start, safe_path


def watch(start: Start, placement: Placement | None = None, secret: bytes = b"") -> int:
    """Becomes the watchdog, or a member that serves another machine's; the exit code of the run."""
    if not sys.flags.safe_path and safe_path():
        sys.path.pop(0)  # a file of the user's there must not stand for a library's
    try:
        if placement is not None and not placement.coordinates:
            from procsv.watchdog.member import run_member

            return run_member(start, placement, secret)
        from procsv.watchdog.main import run

        return run(start, placement=placement, secret=secret)
    except BeginAgain as again:
        return _begin_again(again)


def _begin_again(again: BeginAgain) -> int:
    """The same command in the same process, to which a scheduler has given its place.  Killed before: as a machine that is lost."""
    sys.stdout.flush()
    sys.stderr.flush()
    told = {MOVED: msgspec.json.encode(again.move).decode()} if again.move is not None else {}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **told})
