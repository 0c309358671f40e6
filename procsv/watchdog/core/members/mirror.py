"""The mirror: a copy of what the chief has in memory on another machine, for the loss of the chief's.

Pure.  Who keeps it: the coordinator asks `choose_keeper`.  When its keeper fetches, and how fast: Pace (mirror_pace.py).  Which copy
a coordinator begins with that follows a lost one: edge/members/mirror_restore.py tries those of `newer_copies`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from procsv.base.identity import TaskId
from procsv.base.outcome import NO_STEP
from procsv.watchdog.core.members.membership import Member


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


def newer_copies(found: Iterable[tuple[Copy, C]], own: Iterable[Copy], saved_step: int, last_run: str = "") -> list[C]:
    """Those of `found` that are worth having, the newest first.

    `own`: what is in the memory of this machine already.  `saved_step`: of the newest checkpoint, which holds as much.  `last_run`: which
    had the logdir last, if that is known: a copy of a run before it may be of what it has not gone on from.
    """
    ours = {copy.run: copy.sequence for copy in sorted(own, key=lambda copy: copy.sequence)}
    newer = [pair for pair in found if pair[0].sequence > ours.get(pair[0].run, 0) and pair[0].step > saved_step]
    newer.sort(key=lambda pair: (pair[0].run == last_run, pair[0].sequence), reverse=True)
    return [where for _, where in newer]
