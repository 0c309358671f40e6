"""Interval between snapshots.  Pure: costs in, seconds out.

`auto` spaces snapshots so that they cost at most COST_SHARE_MAX of the training time, but never
closer than INTERVAL_S_MIN and two steps.  The cost has two parts: the stall on the training thread,
and the delay of steps that run beside the copy or that copy on write after the capture.  Step times
vary by more than a small snapshot costs, so the delay is the mean over many snapshots minus its
standard error: noise alone never makes snapshots rare.  Even if steps lose nothing, the copy takes
a core and memory bandwidth from other programs.  So the delay counts as at least COPY_SHARE of the
copy's duration, and copying never takes more than a tenth of a core.  The heartbeat shows the
choice and the reason (`told`).

If shared memory has no room, the training thread writes each snapshot to disk, which costs far
more.  At 1 % of the time there might be one snapshot in ten minutes, and a crash would lose that
much training.  So the limit then rises to STAGED_SHARE_MAX, for one snapshot every STAGED_S.

If another machine keeps copies (`Copies`), the reported interval is how much training the loss of
this machine can cost.  That is the time from a capture until the copy of the next snapshot is whole
on the other machine.  With a fixed interval, snapshots are captured earlier, so that this time fits
into the interval.  `auto` captures as it would without copies, and reports the longer interval.
"""

from __future__ import annotations

import math

import msgspec

from procsv.ipc.shm.heartbeat import Snapshots, Spacing

COST_SHARE_MAX = 0.01
STAGED_SHARE_MAX, STAGED_S = 0.05, 60.0
INTERVAL_S_MIN = 0.1
STEPS_MIN = 2  # the step after a capture may be slower; another one is needed to compare
COPY_SHARE = 0.1
INTERVAL_S_MAX = 600.0  # the most training to put at stake, no matter what a snapshot costs
SMOOTHING = 0.3  # weight of the newest measurement
LOSSES_KEPT = 32
FIRST_SHARE_MAX = 0.05  # replaces COST_SHARE_MAX until the second snapshot, as the first includes one-time work
# The least time from a publication to the next snapshot, as a share of the interval.  So capturing earlier for the
# sake of slow copies never doubles the cost.
PAUSE_SHARE_MIN = 0.5
_FIXED = (Spacing.TOLD, Spacing.AUTO_MOST)  # the interval limits the training at stake, so it includes the copy
# The choices that take copies into account.  CHECKPOINTS does not, because checkpoints have their own times.
_COPIED = (*_FIXED, Spacing.AUTO_LEAST, Spacing.AUTO_COST)
LAGS_KEPT = 8  # the longest of them counts
CAPTURES_KEPT = 16  # after so many captures without a copy, the cadence assumes that no machine keeps copies


class Copies(msgspec.Struct):
    """The delays until copies of the chief's snapshots are whole on another machine.

    The chief learns that a machine keeps copies only from the messages about whole copies.  If none
    of the newest CAPTURES_KEPT snapshots has a copy, the cadence ignores copies altogether.  Times
    are monotonic seconds.
    """

    lags_s: list[float] = []  # of the newest copies
    # From due time to capture, of the newest snapshots: the rest of the step, in this task and in those held for it.
    lates_s: list[float] = []
    _captured_s: dict[int, float] = {}  # capture times of the newest snapshots, by sequence
    _kept: int = 0  # the newest copied sequence

    def captured(self, sequence: int, now_s: float, due_s: float | None = None) -> None:
        """Records a capture that was due at `due_s`; None if the snapshot was requested."""
        if due_s is not None:
            self.lates_s = [*self.lates_s[1 - LAGS_KEPT :], now_s - due_s]
        self._captured_s[sequence] = now_s
        if len(self._captured_s) > CAPTURES_KEPT:
            del self._captured_s[next(iter(self._captured_s))]
        if sequence - self._kept > CAPTURES_KEPT:
            self.lags_s = []

    def kept(self, sequence: int, now_s: float) -> None:
        """Records that another machine has a whole copy of `sequence`."""
        # Without a capture time, the snapshot is from a previous attempt or too old.
        if (captured_s := self._captured_s.get(sequence)) is not None:
            self.lags_s = [*self.lags_s[1 - LAGS_KEPT :], now_s - captured_s]
            self._kept = max(self._kept, sequence)

    def captured_s(self, sequence: int) -> float | None:
        """When snapshot `sequence` was captured; None if unknown."""
        return self._captured_s.get(sequence)

    @property
    def lag_s(self) -> float:
        """The longest recent delay from a capture to its copy; 0.0 if no machine keeps copies."""
        return max(self.lags_s, default=0.0)

    @property
    def late_s(self) -> float:
        """The longest recent delay from due time to capture."""
        return max(self.lates_s, default=0.0)


class Cadence(msgspec.Struct):
    """The interval between snapshots, and the measured costs that it depends on.

    `fixed_s` None means auto; 0.0 means only requested snapshots.  `at_most_s` is the time between
    checkpoints (0.0: none by time): each checkpoint needs a snapshot.
    """

    fixed_s: float | None
    at_most_s: float = 0.0
    least_s: float = INTERVAL_S_MIN
    is_staged: bool = False  # no room in shared memory: snapshots are files
    step_s: float = 0.0  # median of a step; 0.0: unknown
    copy_s: float = 0.0
    losses_s: list[float] = []  # loss of the steps beside and after each of the newest snapshots
    stall_s: float = 0.0  # by the newest snapshot
    mean_stall_s: float = 0.0
    taken: int = 0
    copies: Copies = msgspec.field(default_factory=Copies)

    def learn(self, stall_s: float, copy_s: float, lost_s: float | None = None, step_s: float = 0.0) -> None:
        """Records what one snapshot cost.

        `lost_s` is what the steps beside the previous snapshot lost, if that is known.
        """
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
        """What the steps beside a snapshot lose, beyond chance."""
        count = len(self.losses_s)
        if count < 2:
            return 0.0
        mean_s = sum(self.losses_s) / count
        # Not by the statistics module: it uses fractions, which costs half as much as a small
        # snapshot.
        variance = sum((loss_s - mean_s) ** 2 for loss_s in self.losses_s) / (count - 1)
        return max(0.0, mean_s - math.sqrt(variance / count))

    @property
    def cost_s(self) -> float:
        """The cost of one snapshot."""
        return self.mean_stall_s + max(self.lost_s, COPY_SHARE * self.copy_s)

    def next_due_s(self, published_s: float, sequence: int = 0) -> float | None:
        """When the next snapshot is due after `sequence` was published at `published_s`.

        None means never.  If another machine keeps copies, the interval runs from the capture of
        `sequence`, because that is when the copied state was current.
        """
        (chosen_s, spacing), captured_s = self._choose(), self.copies.captured_s(sequence)
        if not chosen_s:
            return None
        if captured_s is None or not self._behind_s(chosen_s, spacing):
            return published_s + chosen_s
        return max(published_s + PAUSE_SHARE_MIN * chosen_s, captured_s + self._apart_s(chosen_s, spacing))

    def _apart_s(self, chosen_s: float, spacing: Spacing) -> float:
        """Seconds from a capture until the next one is due."""
        ahead_s = self._behind_s(chosen_s, spacing) if spacing in _FIXED else 0.0
        return max(PAUSE_SHARE_MIN * chosen_s, chosen_s - ahead_s)

    def _behind_s(self, chosen_s: float, spacing: Spacing) -> float:
        """Seconds from due time until a snapshot is whole on another machine.

        0.0 if no machine keeps copies, or if these seconds are more than the whole fixed interval.
        """
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
        # Each checkpoint needs a snapshot, whatever it costs.  0.0 means never, so it counts as the longest interval.
        if self.at_most_s and not 0 < chosen[0] < self.at_most_s:
            return self.at_most_s, Spacing.CHECKPOINTS
        return chosen

    def _by_cost_s(self) -> float:
        by_cost_s = self.cost_s / (COST_SHARE_MAX if self.taken > 1 else FIRST_SHARE_MAX)
        return min(by_cost_s, max(STAGED_S, self.cost_s / STAGED_SHARE_MAX)) if self.is_staged else by_cost_s

    def told(self) -> Snapshots:
        """Returns the present choice and what it is based on."""
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
