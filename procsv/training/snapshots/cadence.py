"""Interval between snapshots.  Pure: costs in, seconds out.

`auto` spaces snapshots so that what they cost the training stays under COST_SHARE_MAX of its time, and never
closer than INTERVAL_S_MIN.  The cost is the stall on the training thread plus the copying behind it, which takes
cores and memory bandwidth from the step.  What was chosen, and why, goes into the heartbeat (`told`).
"""

from __future__ import annotations

import msgspec

from procsv.ipc.shm.heartbeat import Snapshots, Spacing

COST_SHARE_MAX = 0.01
INTERVAL_S_MIN = 1.0
INTERVAL_S_MAX = 600.0  # whatever a snapshot costs, more than this is not put at stake
SMOOTHING = 0.3  # weight of the newest measurement


class Cadence(msgspec.Struct):
    """`fixed_s` None means auto; 0.0 means no snapshots but those that are asked for.

    `at_most_s` is the time between checkpoints (0.0: none by time): there is a snapshot for each of them.
    """

    fixed_s: float | None
    at_most_s: float = 0.0
    cost_s: float = 0.0  # of a snapshot: stall and copying
    stall_s: float = 0.0  # of the last one
    mean_stall_s: float = 0.0
    taken: int = 0

    def learn(self, stall_s: float, copy_s: float) -> None:
        """Takes in what one snapshot cost."""
        cost_s = stall_s + copy_s
        is_first = self.taken == 0
        self.cost_s = cost_s if is_first else (1 - SMOOTHING) * self.cost_s + SMOOTHING * cost_s
        self.mean_stall_s = stall_s if is_first else (1 - SMOOTHING) * self.mean_stall_s + SMOOTHING * stall_s
        self.stall_s = stall_s
        self.taken += 1

    @property
    def interval_s(self) -> float:
        """Seconds from one snapshot to the next; 0.0: none are due."""
        return self._choose()[0]

    def _choose(self) -> tuple[float, Spacing]:
        if self.fixed_s is not None:
            chosen = self.fixed_s, Spacing.TOLD if self.fixed_s else Spacing.OFF
        elif (by_cost_s := self.cost_s / COST_SHARE_MAX) <= INTERVAL_S_MIN:
            chosen = INTERVAL_S_MIN, Spacing.AUTO_LEAST
        elif by_cost_s < INTERVAL_S_MAX:
            chosen = by_cost_s, Spacing.AUTO_COST
        else:
            chosen = INTERVAL_S_MAX, Spacing.AUTO_MOST
        # One for each checkpoint, whatever it costs; 0.0, none by time, is the longest interval there is.
        if self.at_most_s and not 0 < chosen[0] < self.at_most_s:
            return self.at_most_s, Spacing.CHECKPOINTS
        return chosen

    def told(self) -> Snapshots:
        """The choice as it stands, and what it rests on."""
        interval_s, spacing = self._choose()
        return Snapshots(spacing, interval_s, self.taken, self.stall_s, self.mean_stall_s, self.cost_s)
