"""Limits of this process and what others may see of it: its descriptors, and its memory, which may hold keys.

Called by `procsv launch` before it becomes a watchdog, and by the checkpoint service before it offers snapshots.  What a watchdog starts
has the limit that the user has set (`give_back_limit`, by processes.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import resource

from procsv.base import exit_codes
from procsv.base.errors import UserError

DESCRIPTORS_MIN = 64  # of a launch; with fewer, libraries abort in the middle of a run
DESCRIPTORS_MAX = 65_536  # that a watchdog takes for itself
PR_SET_DUMPABLE = 4

_users: tuple[int, int] | None = None  # the limit that was there before we raised our own


def check_descriptors() -> None:
    """UserError where there are too few to run anything."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < DESCRIPTORS_MIN:
        raise UserError(
            f"this shell lets a process open {limit} files (ulimit -n), and a run takes {DESCRIPTORS_MIN} at least: raise it",
            exit_code=exit_codes.GAVE_UP,
        )


def raise_descriptor_limit() -> None:
    """As far as the system lets us: a coordinator has strangers at its port, and connections of them in its table."""
    global _users
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < (most := min(hard, DESCRIPTORS_MAX)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        _users = soft, hard


def give_back_limit(pid: int = 0) -> None:
    """The user's own limit, for a child that has just begun, or (0) for this process, which is about to become another."""
    if _users is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _users)


def forbid_dumps() -> None:
    """No core dump has this process's memory, and no other process of this user, but root, looks into it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
