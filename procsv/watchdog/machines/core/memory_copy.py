"""A memory copy: what the chief has in memory, on another machine, for the loss of the chief's.

Pure.  Who keeps it: the coordinator asks `choose_keeper`.  When its keeper fetches, and how fast: TransferRate.  Which copy
a coordinator begins with that follows a lost one: watchdog/machines/memory_copy/restore.py tries those of `newer_copies`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from procsv.base.identity import TaskId
from procsv.watchdog.machines.core.membership import Member


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


# -- the pace of the copy ----------------------------------------------------------------------------------------
# A loss of the chief's machine costs the time between two snapshots, and that of a copy's travel on top, by which the chief takes them closer
# (training/snapshots/cadence.py): so a copy is to travel in a small part of that time, if the way carries it.  What it costs both machines is
# bounded by the bytes a second over all copies: snapshots that come faster are skipped, and what is fetched is the newest there is.
AVERAGE_BYTES_PER_S = 64 * 2**20  # over all copies: a tenth of a core to send, a seventh to receive and check
PROCESSORS = 8  # a machine with more can afford as much again for each so many
START_BYTES_PER_S = 64 * 2**20  # of the first copy, and of each at least, where the way carries it
BYTES_PER_S_MIN, BYTES_PER_S_MAX = 2**20, 512 * 2**20  # of one, and the most of all
TRAVEL_SHARE = 0.1  # of the time between two snapshots, in which one is to travel
WAY_SHARE = 0.75  # of what the way has been seen to carry; the rest is for the training, which may have taken some of it then, too
FASTER = 2.0  # than the one before, at most
TRIES_MORE = 1.02  # with each that was not late, the way is taken to carry so much more
LATE, LATE_S = (
    1.1,
    0.1,
)  # how much longer than it was to take one may take; if two in a row do, that is what the way carries,
SLOW_S = (
    5.0  # or if one takes so much longer: a break of the link, or a moment in which a machine stood still, costs less
)
SPACING_S_MIN = 0.05  # from the beginning of one to the question for the next
AGAIN_S = 10.0  # after one that has failed; each in a row takes twice as long,
AGAIN_S_MAX = 300.0  # up to this


def affordable(processors: float) -> float:
    """Bytes a second, over all copies, that a machine with so many processors sends or takes in beside its training."""
    return min(BYTES_PER_S_MAX, AVERAGE_BYTES_PER_S * max(1.0, processors / PROCESSORS))


class TransferRate(msgspec.Struct):
    """When the keeper asks for the next snapshot, and how fast that may travel.

    Times are monotonic seconds; `due_s` None: nothing is to be asked before something else happens.
    """

    due_s: float | None = None
    failures: int = 0  # in a row
    average: float = AVERAGE_BYTES_PER_S  # bytes a second over all copies
    bytes_per_s: float = START_BYTES_PER_S  # of the newest fetch
    _carries: float = math.inf  # bytes a second, as far as the way was seen to be too slow
    _was_late: bool = False  # the newest copy
    _sequence: int = 0  # of the newest snapshot that was offered, and when; 0: none was
    _offered_s: float = 0.0

    def begin_transfers(self, now_s: float, average: float = AVERAGE_BYTES_PER_S) -> None:
        """Another machine is asked from now on.  `average`: bytes a second over all copies, that both machines can afford."""
        self.due_s, self.failures, self._carries, self._was_late, self._sequence = now_s, 0, math.inf, False, 0
        self.average, self.bytes_per_s = average, START_BYTES_PER_S

    def stop(self) -> None:
        self.due_s = None

    def is_due(self, now_s: float) -> bool:
        return self.due_s is not None and now_s >= self.due_s

    def asked(self) -> None:
        """Nothing more is to be asked before that has come to an end."""
        self.due_s = None

    def offered(self, sequence: int, size: int, now_s: float) -> float:
        """A snapshot of so many bytes is fetched now; at how many bytes a second.

        Snapshots are counted, so the newest two tell how far those lie apart that were skipped, too.
        """
        if 0 < self._sequence < sequence:
            interval_s = max(SPACING_S_MIN, (now_s - self._offered_s) / (sequence - self._sequence))
            wanted = max(START_BYTES_PER_S, size / (TRAVEL_SHARE * interval_s))
            may = min(BYTES_PER_S_MAX, self.bytes_per_s * FASTER, self._carries * WAY_SHARE)
            self.bytes_per_s = max(BYTES_PER_S_MIN, min(wanted, may))
        self._sequence, self._offered_s = sequence, now_s
        return self.bytes_per_s

    def fetched(self, size: int, took_s: float, now_s: float) -> None:
        self.due_s = max(now_s, now_s - took_s + max(SPACING_S_MIN, size / self.average))
        self.failures = 0
        late_s = took_s - LATE * size / self.bytes_per_s - LATE_S
        if late_s <= 0.0:
            self._carries *= TRIES_MORE
        elif self._was_late or late_s > SLOW_S:
            self._carries = size / took_s
        self._was_late = late_s > 0.0

    def failed(self, now_s: float) -> None:
        self.due_s = now_s + min(AGAIN_S_MAX, AGAIN_S * 2 ** min(self.failures, 5))
        self.failures += 1
