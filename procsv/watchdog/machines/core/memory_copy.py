"""Decide about the copy of the chief's memory on another machine.

The copy is kept in case the chief's machine is lost. Pure. `choose_keeper` tells the coordinator
which member keeps the copy. TransferRate decides when the keeper fetches, and how fast.
`newer_copies` decides which copies a new coordinator tries
(watchdog/machines/coordinator.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from procsv.base.identity import TaskId
from procsv.watchdog.machines.core.membership import Member


def choose_keeper(members: Mapping[TaskId, Member], host: str) -> Member | None:
    """Choose who keeps the copy: the first member with a task on another machine than the
    coordinator's `host`.
    """
    fit = [member for member in members.values() if member.stays and member.host != host]
    return min(fit, key=lambda member: member.number, default=None)


class Copy(msgspec.Struct, frozen=True):
    """A snapshot, kept by some machine."""

    run: str  # the run that took it
    sequence: int
    step: int


C = TypeVar("C")


def newer_copies(found: Iterable[tuple[Copy, C]], own: Iterable[Copy], saved_step: int, last_run: str = "") -> list[C]:
    """Return the copies of `found` that are worth fetching, the best first.

    `found`: pairs of a copy and the value to return for it. `own`: the snapshots in this machine's
    memory. `saved_step`: the step of the newest checkpoint, which makes copies of that step and of
    older ones useless. `last_run`: the run that had the logdir last, if known. Its copies come
    before all others, because a copy of an earlier run may hold a state from which the last run did
    not resume. Within that order, newer copies come first.
    """
    ours = {copy.run: copy.sequence for copy in sorted(own, key=lambda copy: copy.sequence)}
    newer = [pair for pair in found if pair[0].sequence > ours.get(pair[0].run, 0) and pair[0].step > saved_step]
    newer.sort(key=lambda pair: (pair[0].run == last_run, pair[0].sequence), reverse=True)
    return [where for _, where in newer]


# -- the pace of the copy ----------------------------------------------------------------------------------------
# Losing the chief's machine costs the time between two snapshots plus the time that a copy travels; the chief
# snapshots correspondingly more often (training/snapshots/cadence.py). So a copy should travel in a small part of
# the interval, if the link is fast enough. The average rate over all copies bounds the cost to both machines: when
# snapshots come faster, some are skipped, and the newest is fetched.
AVERAGE_BYTES_PER_S = 64 * 2**20  # over all copies: a tenth of a core to send, a seventh to receive and check
PROCESSORS = 8  # a machine can afford AVERAGE_BYTES_PER_S for every 8 processors, and once if it has fewer
START_BYTES_PER_S = 64 * 2**20  # for the first copy; later ones go at least as fast, if the link allows
BYTES_PER_S_MIN, BYTES_PER_S_MAX = 2**20, 512 * 2**20  # for a single copy; the maximum also bounds the average
TRAVEL_SHARE = 0.1  # a copy should travel in this part of the snapshot interval
WAY_SHARE = 0.75  # of the rate observed on the link; training has the rest, and may have used some while we observed
FASTER = 2.0  # than the previous copy, at most
TRIES_MORE = 1.02  # after each copy that was on time, the link's assumed rate rises by this factor
# A copy is late if it takes longer than LATE times its expected time plus LATE_S. After two late copies in a row, or
# one that is late by more than SLOW_S, the observed rate becomes the link's assumed rate. A single smaller delay, such
# as a break of the link or a machine that stood still, does not count.
LATE, LATE_S = 1.1, 0.1
SLOW_S = 5.0
SPACING_S_MIN = 0.05  # from the start of one copy to the request for the next
AGAIN_S = 10.0  # pause after a failure, doubled with each failure in a row
AGAIN_S_MAX = 300.0  # the longest pause


def affordable(processors: float) -> float:
    """Return the bytes per second, averaged over all copies, that a machine can transfer beside its
    training.
    """
    return min(BYTES_PER_S_MAX, AVERAGE_BYTES_PER_S * max(1.0, processors / PROCESSORS))


class TransferRate(msgspec.Struct):
    """Decides when the keeper asks for the next snapshot, and how fast it may travel.

    Times are monotonic seconds. `due_s` None: an order or an answer must come before the next
    request.
    """

    due_s: float | None = None
    failures: int = 0  # in a row
    average: float = AVERAGE_BYTES_PER_S  # bytes a second over all copies
    bytes_per_s: float = START_BYTES_PER_S  # the newest fetch's
    _link_bytes_per_s: float = math.inf  # the link's assumed rate, once the link was seen to be too slow
    _was_late: bool = False  # whether the newest copy was
    _sequence: int = 0  # of the newest offered snapshot; 0: none
    _offered_s: float = 0.0  # when that snapshot was offered

    def begin_transfers(self, now_s: float, average: float = AVERAGE_BYTES_PER_S) -> None:
        """Begin transfers from a machine, and forget what was observed before. `average`: the bytes
        per second over all copies that both machines can afford.
        """
        self.due_s, self.failures, self._link_bytes_per_s, self._was_late, self._sequence = now_s, 0, math.inf, False, 0
        self.average, self.bytes_per_s = average, START_BYTES_PER_S

    def stop(self) -> None:
        self.due_s = None

    def is_due(self, now_s: float) -> bool:
        return self.due_s is not None and now_s >= self.due_s

    def asked(self) -> None:
        """Note the request: ask for nothing more until it has been answered."""
        self.due_s = None

    def offered(self, sequence: int, size: int, now_s: float) -> float:
        """Return the bytes per second at which to fetch the offered snapshot of `size` bytes.

        Snapshots are numbered, so two offers show the interval even if snapshots between them were
        skipped.
        """
        if 0 < self._sequence < sequence:
            interval_s = max(SPACING_S_MIN, (now_s - self._offered_s) / (sequence - self._sequence))
            wanted = max(START_BYTES_PER_S, size / (TRAVEL_SHARE * interval_s))
            may = min(BYTES_PER_S_MAX, self.bytes_per_s * FASTER, self._link_bytes_per_s * WAY_SHARE)
            self.bytes_per_s = max(BYTES_PER_S_MIN, min(wanted, may))
        self._sequence, self._offered_s = sequence, now_s
        return self.bytes_per_s

    def fetched(self, size: int, took_s: float, now_s: float) -> None:
        self.due_s = max(now_s, now_s - took_s + max(SPACING_S_MIN, size / self.average))
        self.failures = 0
        late_s = took_s - LATE * size / self.bytes_per_s - LATE_S
        if late_s <= 0.0:
            self._link_bytes_per_s *= TRIES_MORE
        elif self._was_late or late_s > SLOW_S:
            self._link_bytes_per_s = size / took_s
        self._was_late = late_s > 0.0

    def failed(self, now_s: float) -> None:
        self.due_s = now_s + min(AGAIN_S_MAX, AGAIN_S * 2 ** min(self.failures, 5))
        self.failures += 1
