"""The mirror: a copy of what the chief has in memory on another machine, for the loss of the chief's.

Pure.  Who keeps it: the coordinator asks `choose_keeper`.  When its keeper fetches: Pace, which edge/members/mirror.py asks.  Which copy
a coordinator begins with that follows a lost one: edge/members/mirror_restore.py tries those of `newer_copies`.

A fetch costs both machines processor time and the network between them, so it has a rate, and a share of the time: what comes faster
than that is skipped, and what is fetched is the newest there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from procsv.base.identity import TaskId
from procsv.base.outcome import NO_STEP
from procsv.watchdog.core.members.membership import Member

BYTES_PER_S = 64 * 2**20  # while a snapshot is fetched: half of what a slow network (1 Gbit/s) carries
TIME_SHARE = 0.5  # in which one is fetched, at most
PAUSE_S_MIN = 0.2  # from the end of one to the question for the next
AGAIN_S = 10.0  # after one that has failed; each in a row takes twice as long,
AGAIN_S_MAX = 300.0  # up to this


class Kept(msgspec.Struct, frozen=True):
    """The copy that there is, as the coordinator knows it."""

    host: str = ""  # "": there is none
    step: int = NO_STEP


NO_MIRROR = Kept()


def choose_keeper(members: Mapping[TaskId, Member], host: str) -> Member | None:
    """Who keeps the copy: of the members with a task that are there, on another machine than the coordinator's `host`, the first."""
    fit = [member for member in members.values() if member.stays and member.host != host]
    return min(fit, key=lambda member: member.number, default=None)


class Copy(msgspec.Struct, frozen=True):
    """A snapshot that somebody has."""

    run: str  # that took it
    sequence: int
    step: int


C = TypeVar("C")


def newer_copies(found: Iterable[tuple[Copy, C]], own: Iterable[Copy], saved_step: int) -> list[C]:
    """Those of `found` that are worth having, the newest first.

    `own`: what is in the memory of this machine already.  `saved_step`: of the newest checkpoint, which holds as much.
    """
    ours = {copy.run: copy.sequence for copy in sorted(own, key=lambda copy: copy.sequence)}
    newer = [pair for pair in found if pair[0].sequence > ours.get(pair[0].run, 0) and pair[0].step > saved_step]
    return [where for _, where in sorted(newer, key=lambda pair: pair[0].sequence, reverse=True)]


class Pace(msgspec.Struct):
    """When the keeper asks for the next snapshot.  Times are monotonic seconds, None: not before something else happens."""

    due_s: float | None = None
    failures: int = 0  # in a row

    def begin(self, now_s: float) -> None:
        self.due_s, self.failures = now_s, 0

    def stop(self) -> None:
        self.due_s = None

    def is_due(self, now_s: float) -> bool:
        return self.due_s is not None and now_s >= self.due_s

    def asked(self) -> None:
        """Nothing more is to be asked before that has come to an end."""
        self.due_s = None

    def fetched(self, took_s: float, now_s: float) -> None:
        self.due_s = now_s + max(PAUSE_S_MIN, took_s * (1 / TIME_SHARE - 1))
        self.failures = 0

    def failed(self, now_s: float) -> None:
        self.due_s = now_s + min(AGAIN_S_MAX, AGAIN_S * 2 ** min(self.failures, 5))
        self.failures += 1
