"""Which checkpoints are kept.  Pure: the store deletes.

As tf.compat.v1.train.Saver does it, but for two of its bugs: all that is over `max_to_keep` goes, not one a save,
and the time of the next one to keep for good is not forgotten by a restart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

KEEP_NEVER_HOURS = 10_000.0  # Saver's default for keep_checkpoint_every_n_hours; no run is that long


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint on the list, and when it was written (Unix seconds)."""

    path: str
    time: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a new checkpoint changes."""

    listed: tuple[str, ...]  # for the `checkpoint` file, oldest first
    delete: tuple[str, ...]
    spared: tuple[str, ...]  # off the list, but kept for good
    next_keep: float  # Unix seconds; the first checkpoint after it is spared when its turn comes


def first_keep(since: float, every_n_hours: float) -> float:
    """When the first checkpoint is to be kept for good, counted from `since` (Unix seconds)."""
    return since + every_n_hours * 3600 if every_n_hours < KEEP_NEVER_HOURS else math.inf


def retain(listed: list[Kept], new: Kept, *, max_to_keep: int, every_n_hours: float, next_keep: float) -> Outcome:
    """What the list becomes with `new` on it.  `max_to_keep` 0 deletes nothing and lists only the new one."""
    if max_to_keep <= 0:
        return Outcome((new.path,), (), (), next_keep)
    chain = [kept for kept in listed if kept.path != new.path] + [new]
    excess, chain = chain[:-max_to_keep], chain[-max_to_keep:]
    delete, spared = [], []
    for old in excess:
        if old.time > next_keep:
            spared.append(old.path)
            next_keep += every_n_hours * 3600
        else:
            delete.append(old.path)
    return Outcome(tuple(kept.path for kept in chain), tuple(delete), tuple(spared), next_keep)
