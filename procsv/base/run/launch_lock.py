"""The lock that a launch holds on a directory of its own, as it tells others of it: by it they know which of two launches is dead.

Described by edge/members/own_lock.py, sent by a member of a run on several machines, judged by its coordinator
(watchdog/core/members/succession.py).  Pure.
"""

from __future__ import annotations

import msgspec


class LaunchLock(msgspec.Struct, frozen=True):
    """Which directory it is, of which system since its boot, and when it was locked.

    A lock has one holder at a time, and dies with the last process that has inherited it: of two launches that have had the same one,
    the earlier is dead with all that it has started.
    """

    directory: str  # boot, device and inode: the same for every container on that system
    taken_s: float  # Unix time: a container may have a monotonic clock of its own.  One that was set back shows nothing

    def follows(self, other: LaunchLock | None) -> bool:
        """Whether who has had `other` is dead."""
        return other is not None and self.directory == other.directory and self.taken_s > other.taken_s
