"""Interval between snapshots.  Pure: costs in, seconds out.

`auto` spaces snapshots so that what they cost the training stays under COST_SHARE_MAX of its time, never closer than
INTERVAL_S_MIN and two steps.  The cost is the stall on the training thread, and what the steps lose that run beside the copy or
copy on write after the capture.  Steps differ by themselves, by more than a small snapshot costs: what they lose is the mean over
many snapshots, less its standard error, so that noise alone never makes snapshots rare.  Where they lose nothing, the copying still
takes a core and memory bandwidth from others: COPY_SHARE of it counts, so that it never takes more than a tenth of a core.  What
was chosen, and why, goes into the heartbeat (`told`).

Where shared memory has no room, the training thread writes each snapshot to disk, which costs far more.  At 1 % of the time there would be
one in ten minutes, say, and a crash would cost those.  So then up to STAGED_SHARE_MAX is paid for one in STAGED_S.

Where another machine keeps copies (`Copies`), the interval that is told is what the loss of this machine costs: it ends when the copy
of the next snapshot is whole there.  A fixed one is kept by capturing so much earlier; auto captures when it would without, and tells so
much more.
"""

from __future__ import annotations

import math

import msgspec

from procsv.ipc.shm.heartbeat import Snapshots, Spacing

COST_SHARE_MAX = 0.01
STAGED_SHARE_MAX, STAGED_S = 0.05, 60.0
INTERVAL_S_MIN = 0.1
STEPS_MIN = 2  # the one after a capture may be slower, and is to be compared with another
COPY_SHARE = 0.1
INTERVAL_S_MAX = 600.0  # whatever a snapshot costs, more than this is not put at stake
SMOOTHING = 0.3  # weight of the newest measurement
LOSSES_KEPT = 32
FIRST_SHARE_MAX = 0.05  # until there is a second one: the first capture of a process also does what is done once
PAUSE_SHARE_MIN = (
    0.5  # of the interval, from one that is published to the next: copies that take long never double the cost
)
_FIXED = (Spacing.TOLD, Spacing.AUTO_MOST)  # what is at stake is never to be more
_COPIED = (
    *_FIXED,
    Spacing.AUTO_LEAST,
    Spacing.AUTO_COST,
)  # those that reckon with copies: checkpoints have times of their own
LAGS_KEPT = 8  # the longest of them counts
CAPTURES_KEPT = 16  # without a copy in so many, nobody keeps any


class Copies(msgspec.Struct):
    """Copies of the chief's snapshots on another machine, as the chief hears of them: how long each takes to be whole there.

    That somebody keeps them is only known from the copies that come: where the newest snapshots have none, as nobody does any
    more, or cannot, it is as if there had never been any.  Times are monotonic seconds.
    """

    lags_s: list[float] = []  # of the newest copies
    lates_s: list[
        float
    ] = []  # of the newest snapshots, from when each was due to its capture: the step under way, and those of other tasks
    _captured_s: dict[int, float] = {}  # of the newest snapshots, by sequence
    _kept: int = 0  # the newest sequence that has been copied

    def captured(self, sequence: int, now_s: float, due_s: float | None = None) -> None:
        """`due_s`: when it was to be; None: it was asked for."""
        if due_s is not None:
            self.lates_s = [*self.lates_s[1 - LAGS_KEPT :], now_s - due_s]
        self._captured_s[sequence] = now_s
        if len(self._captured_s) > CAPTURES_KEPT:
            del self._captured_s[next(iter(self._captured_s))]
        if sequence - self._kept > CAPTURES_KEPT:
            self.lags_s = []

    def kept(self, sequence: int, now_s: float) -> None:
        """Another machine has that one whole."""
        if (
            captured_s := self._captured_s.get(sequence)
        ) is not None:  # else it is of an attempt before, or too old to tell
            self.lags_s = [*self.lags_s[1 - LAGS_KEPT :], now_s - captured_s]
            self._kept = max(self._kept, sequence)

    def captured_s(self, sequence: int) -> float | None:
        """When that was; None: not known."""
        return self._captured_s.get(sequence)

    @property
    def lag_s(self) -> float:
        """From a capture to its copy, as it was at worst of late; 0.0: nobody keeps any."""
        return max(self.lags_s, default=0.0)

    @property
    def late_s(self) -> float:
        """How long after it is due a snapshot is captured, as it was at worst of late."""
        return max(self.lates_s, default=0.0)


class Cadence(msgspec.Struct):
    """`fixed_s` None means auto; 0.0 means no snapshots but those that are asked for.

    `at_most_s` is the time between checkpoints (0.0: none by time): there is a snapshot for each of them.
    """

    fixed_s: float | None
    at_most_s: float = 0.0
    least_s: float = INTERVAL_S_MIN
    is_staged: bool = False  # shared memory has no room: snapshots are files
    step_s: float = 0.0  # a step's median; 0.0: not known
    copy_s: float = 0.0
    losses_s: list[float] = []  # of the newest snapshots: what the steps beside each, and after it, have lost
    stall_s: float = 0.0  # of the last one
    mean_stall_s: float = 0.0
    taken: int = 0
    copies: Copies = msgspec.field(default_factory=Copies)

    def learn(self, stall_s: float, copy_s: float, lost_s: float | None = None, step_s: float = 0.0) -> None:
        """Takes in what one snapshot cost; `lost_s`: what the steps beside the one before have lost, if that is known."""
        self.mean_stall_s = self._smooth(self.mean_stall_s, stall_s)
        self.copy_s = self._smooth(self.copy_s, copy_s)
        if lost_s is not None:
            self.losses_s = [*self.losses_s[1 - LOSSES_KEPT :], lost_s]
        self.stall_s, self.step_s = stall_s, step_s
        self.taken += 1

    def _smooth(self, mean_s: float, newest_s: float) -> float:
        return newest_s if self.taken < 2 else mean_s + SMOOTHING * (newest_s - mean_s)

    @property
    def lost_s(self) -> float:
        """What the steps beside a snapshot lose, as far as that is beyond chance."""
        count = len(self.losses_s)
        if count < 2:
            return 0.0
        mean_s = sum(self.losses_s) / count
        # By hand: the statistics module reckons with fractions, which costs half as much as a small snapshot.
        variance = sum((loss_s - mean_s) ** 2 for loss_s in self.losses_s) / (count - 1)
        return max(0.0, mean_s - math.sqrt(variance / count))

    @property
    def cost_s(self) -> float:
        """Of a snapshot."""
        return self.mean_stall_s + max(self.lost_s, COPY_SHARE * self.copy_s)

    @property
    def interval_s(self) -> float:
        """Seconds from one snapshot to the next, what its copy takes included; 0.0: none are due."""
        return self.told().interval_s

    def next_due_s(self, published_s: float, sequence: int = 0) -> float | None:
        """When the one after snapshot `sequence` is due, which was published at that time; None: never.

        A copy counts from the capture on, and the next one waits for the end of a step, and for tasks that are held for it.
        """
        (chosen_s, spacing), captured_s = self._choose(), self.copies.captured_s(sequence)
        if not chosen_s:
            return None
        if captured_s is None or not self._behind_s(chosen_s, spacing):
            return published_s + chosen_s
        return max(published_s + PAUSE_SHARE_MIN * chosen_s, captured_s + self._apart_s(chosen_s, spacing))

    def _apart_s(self, chosen_s: float, spacing: Spacing) -> float:
        """From one capture to when the next is due."""
        ahead_s = self._behind_s(chosen_s, spacing) if spacing in _FIXED else 0.0
        return max(PAUSE_SHARE_MIN * chosen_s, chosen_s - ahead_s)

    def _behind_s(self, chosen_s: float, spacing: Spacing) -> float:
        """How long after it is due a snapshot is whole on another machine; 0.0: nobody keeps copies, or that leaves nothing of the interval."""
        if not self.copies.lag_s or spacing not in _COPIED:
            return 0.0
        behind_s = self.copies.lag_s + max(self.step_s, self.copies.late_s)
        return behind_s if spacing not in _FIXED or behind_s <= chosen_s else 0.0

    def _choose(self) -> tuple[float, Spacing]:
        if self.fixed_s is not None:
            chosen = self.fixed_s, Spacing.TOLD if self.fixed_s else Spacing.OFF
        elif (by_cost_s := self._by_cost_s()) <= (least_s := max(self.least_s, STEPS_MIN * self.step_s)):
            chosen = min(least_s, INTERVAL_S_MAX), Spacing.AUTO_LEAST
        elif by_cost_s < INTERVAL_S_MAX:
            chosen = by_cost_s, Spacing.AUTO_COST
        else:
            chosen = INTERVAL_S_MAX, Spacing.AUTO_MOST
        # One for each checkpoint, whatever it costs; 0.0, none by time, is the longest interval there is.
        if self.at_most_s and not 0 < chosen[0] < self.at_most_s:
            return self.at_most_s, Spacing.CHECKPOINTS
        return chosen

    def _by_cost_s(self) -> float:
        by_cost_s = self.cost_s / (COST_SHARE_MAX if self.taken > 1 else FIRST_SHARE_MAX)
        return min(by_cost_s, max(STAGED_S, self.cost_s / STAGED_SHARE_MAX)) if self.is_staged else by_cost_s

    def told(self) -> Snapshots:
        """The choice as it stands, and what it rests on."""
        chosen_s, spacing = self._choose()
        interval_s = chosen_s if spacing in _FIXED else chosen_s + self._behind_s(chosen_s, spacing)
        apart_s = self._apart_s(chosen_s, spacing)
        return Snapshots(
            spacing=spacing,
            interval_s=interval_s,
            taken=self.taken,
            stall_s=self.stall_s,
            mean_stall_s=self.mean_stall_s,
            mean_cost_s=self.cost_s,
            apart_s=apart_s,
        )
