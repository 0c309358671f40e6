"""Retention: the checkpoints that are kept.  Pure; the store deletes.

The rules are those of tf.compat.v1.train.Saver, without three of its bugs: everything over `max_to_keep` goes, not one a save; a
restart does not forget when the next one is to be kept for good; and after a long pause not all are kept until that has caught up.  The service's checkpoints and those that
the program saves with the supervised Saver are one list, in the order of their states.  An *external* checkpoint comes from another
Saver, or has another name.  It stays on the list, is not counted, and is never deleted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set

import msgspec

from procsv.ipc.messaging.checkpoint_messages import KEEP_NEVER_HOURS


class ListedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint on the list, and when it was written (Unix seconds)."""

    path: str
    time: float
    is_external: bool = False


class Rule(msgspec.Struct, frozen=True):
    """What the Saver asks for."""

    max_to_keep: int  # 0: nothing is deleted, and only the newest is listed
    every_n_hours: float
    next_keep: float = math.inf  # Unix seconds; the first checkpoint after it is kept for good


class RetentionOutcome(msgspec.Struct, frozen=True):
    """What a new checkpoint, or a list that somebody else has written, changes."""

    listed: tuple[str, ...]  # for the `checkpoint` file, oldest first
    delete: tuple[str, ...]
    next_keep: float


def first_keep(since: float, every_n_hours: float) -> float:
    """When the first checkpoint is to be kept for good, counted from `since` (Unix seconds)."""
    return since + every_n_hours * 3600 if every_n_hours < KEEP_NEVER_HOURS else math.inf


def retain(
    listed: Sequence[ListedCheckpoint], new: ListedCheckpoint, rule: Rule, later: Set[str] = frozenset()
) -> RetentionOutcome:
    """What the list becomes with `new` on it: at its end, but before those at the end that hold a `later` state."""
    chain = [kept for kept in listed if kept.path != new.path]
    at = len(chain)
    while at and chain[at - 1].path in later:
        at -= 1
    chain.insert(at, new)
    return _trim(chain, rule)


def repair(before: Sequence[ListedCheckpoint], now: Sequence[ListedCheckpoint], rule: Rule) -> RetentionOutcome:
    """What the list becomes when somebody else has written it as `now`; it was `before`.  Of both, what is there.

    A Saver that knows of all has made room: what it has taken off the list stays off, and what it keeps for good stays.
    One that knows only its own has dropped the others: they come back.  The latest is what it says.
    """
    there = {kept.path for kept in now}
    dropped = [kept for kept in before if kept.path not in there]
    is_full = sum(not kept.is_external for kept in now) >= max(rule.max_to_keep, 1)
    rotated = [kept.path for kept in dropped if is_full and not kept.is_external]
    known = {kept.path for kept in before}
    chain = [kept for kept in before if kept.path not in rotated]
    chain += [kept for kept in now if kept.path not in known]
    if now:
        chain.sort(key=lambda kept: kept.path == now[-1].path)
    outcome = _trim(chain, rule)
    # Whether that Saver meant one to stay, only one that never does tells; what it has not got round to deleting goes.
    leaves_none = rule.max_to_keep > 0 and rule.every_n_hours >= KEEP_NEVER_HOURS
    delete = (*rotated, *outcome.delete) if leaves_none else outcome.delete
    return RetentionOutcome(outcome.listed, delete, outcome.next_keep)


def _trim(chain: Sequence[ListedCheckpoint], rule: Rule) -> RetentionOutcome:
    """Takes the oldest off until the rule holds."""
    own = [kept for kept in chain if not kept.is_external]
    excess = own[: -max(rule.max_to_keep, 1)]
    off = {kept.path for kept in excess}
    listed = tuple(kept.path for kept in chain if kept.path not in off)
    period_s, delete, next_keep = rule.every_n_hours * 3600, [], rule.next_keep
    if next_keep != math.inf and own:  # the clock may have been set back since that was noted
        next_keep = min(next_keep, max(kept.time for kept in own) + period_s)
    for old in excess if rule.max_to_keep > 0 else ():
        if old.time > next_keep:  # off the list, and kept for good
            # Several periods at once if nothing has run for long.
            next_keep += period_s * math.ceil((old.time - next_keep) / period_s) if period_s else 0.0
        else:
            delete.append(old.path)
    return RetentionOutcome(listed, tuple(delete), next_keep)
