"""How often to take a snapshot.  Pure: costs in, seconds out.

`auto` spaces snapshots so that what they cost the training stays under COST_SHARE_MAX of its time, and never
closer than INTERVAL_S_MIN.  The cost is the stall on the training thread plus the copying behind it, which takes
cores and memory bandwidth from the step.
"""

from __future__ import annotations

from dataclasses import dataclass

COST_SHARE_MAX = 0.01
INTERVAL_S_MIN = 1.0
INTERVAL_S_MAX = 600.0  # whatever a snapshot costs, more than this is not put at stake
SMOOTHING = 0.3  # weight of the newest measurement


@dataclass(slots=True)
class Cadence:
    """`fixed_s` None means auto; 0.0 means no snapshots but those that are asked for.

    `at_most_s` is the time between checkpoints (0.0: none by time): there is a snapshot for each of them.
    """

    fixed_s: float | None
    at_most_s: float = 0.0
    cost_s: float = 0.0

    def learn(self, stall_s: float, copy_s: float) -> None:
        """Takes in what one snapshot cost."""
        cost_s = stall_s + copy_s
        self.cost_s = cost_s if self.cost_s == 0.0 else (1 - SMOOTHING) * self.cost_s + SMOOTHING * cost_s

    @property
    def interval_s(self) -> float:
        """Seconds from one snapshot to the next; 0.0: none are due."""
        if self.fixed_s is not None:
            return min(self.fixed_s, self.at_most_s) if self.at_most_s else self.fixed_s
        longest_s = min(INTERVAL_S_MAX, self.at_most_s) if self.at_most_s else INTERVAL_S_MAX
        return min(longest_s, max(INTERVAL_S_MIN, self.cost_s / COST_SHARE_MAX))
