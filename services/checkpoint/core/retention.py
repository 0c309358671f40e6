"""Decide which checkpoints to keep.  Pure; the store deletes the others.

The rules follow tf.compat.v1.train.Saver, without three of its bugs:

* A save deletes everything over `max_to_keep`.  The Saver deletes just one checkpoint.
* A restart remembers when the next checkpoint is to be kept permanently.  The Saver forgets it.
* After a long pause, only one checkpoint is kept permanently.  The Saver keeps every checkpoint
  until the schedule has caught up.

The service's checkpoints and the supervised Saver's form one list, in the order of their states.
In this module, an *external* checkpoint comes from another Saver, or has another name.  It stays on
the list, is not counted, and is never deleted.
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
    """The Saver's settings, and when the next checkpoint is to be kept permanently."""

    max_to_keep: int  # 0: nothing is deleted, and only the newest is listed
    every_n_hours: float
    next_keep: float = math.inf  # Unix seconds; the first checkpoint after it is kept permanently


class RetentionOutcome(msgspec.Struct, frozen=True):
    """The changes that follow from a new checkpoint, or from another writer's list."""

    listed: tuple[str, ...]  # for the `checkpoint` file, oldest first
    delete: tuple[str, ...]
    next_keep: float


def first_keep(since: float, every_n_hours: float) -> float:
    """Returns when the first checkpoint is to be kept permanently; infinite if never.

    The time is counted from `since`.  Both are Unix seconds.
    """
    return since + every_n_hours * 3600 if every_n_hours < KEEP_NEVER_HOURS else math.inf


def retain(
    listed: Sequence[ListedCheckpoint], new: ListedCheckpoint, rule: Rule, later: Set[str] = frozenset()
) -> RetentionOutcome:
    """Adds `new` to the list, and trims the list by the rule.

    The checkpoints in `later` hold later states.  If the list ends with some of them, `new` goes
    before these; otherwise it goes last.
    """
    chain = [kept for kept in listed if kept.path != new.path]
    at = len(chain)
    while at and chain[at - 1].path in later:
        at -= 1
    chain.insert(at, new)
    return _trim(chain, rule)


def repair(before: Sequence[ListedCheckpoint], now: Sequence[ListedCheckpoint], rule: Rule) -> RetentionOutcome:
    """Repairs the list after another writer has replaced `before` with `now`.

    Both lists hold only existing checkpoints.  If `now` is full, that writer knew all checkpoints
    and dropped the oldest to make room.  These stay off the list.  They are deleted only if the
    Saver keeps no checkpoint permanently.  If `now` is not full, that writer knew only its own
    checkpoints.  Then the checkpoints that it dropped come back.  The latest in `now` stays the
    latest.
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
    # The Saver may keep a checkpoint permanently that is off the list.  Delete only if it keeps none permanently.
    leaves_none = rule.max_to_keep > 0 and rule.every_n_hours >= KEEP_NEVER_HOURS
    delete = (*rotated, *outcome.delete) if leaves_none else outcome.delete
    return RetentionOutcome(outcome.listed, delete, outcome.next_keep)


def _trim(chain: Sequence[ListedCheckpoint], rule: Rule) -> RetentionOutcome:
    """Takes the oldest checkpoints off the list until the rule holds."""
    own = [kept for kept in chain if not kept.is_external]
    excess = own[: -max(rule.max_to_keep, 1)]
    off = {kept.path for kept in excess}
    listed = tuple(kept.path for kept in chain if kept.path not in off)
    period_s, delete, next_keep = rule.every_n_hours * 3600, [], rule.next_keep
    if next_keep != math.inf and own:  # the clock may have been set back since `next_keep` was noted
        next_keep = min(next_keep, max(kept.time for kept in own) + period_s)
    for old in excess if rule.max_to_keep > 0 else ():
        if old.time > next_keep:  # off the list, but kept permanently
            # Advance several periods at once after a long pause.
            next_keep += period_s * math.ceil((old.time - next_keep) / period_s) if period_s else 0.0
        else:
            delete.append(old.path)
    return RetentionOutcome(listed, tuple(delete), next_keep)
