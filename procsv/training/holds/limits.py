"""Limits of a hold over machines.  Those of one machine are in runtime/step_hold.py; only the link's part is added to them.  Pure."""

from __future__ import annotations

from procsv.training.runtime.step_hold import GATHER_S_MAX, HELD_S_MAX

LINK_S_MAX = 0.05  # that is allowed for the link, there and back, in each part of a hold, however slow it is
RELEASE_S_MAX = 0.25  # for a task to say that it has stood until now; the chief's step waits for that
ASK_S = 1.0  # between two questions of where a task is held that is not known, or does not answer
SILENT_ORDERS_MAX = 8  # that wait for a task which takes none; more are dropped


def link_s_of(round_trip_s: float | None) -> float:
    """What is allowed for a link of that round trip; None: not known yet."""
    return LINK_S_MAX if round_trip_s is None else min(round_trip_s, LINK_S_MAX)


def gather_limit_s(gather_s: float, link_s: float) -> float:
    """How long a task stands at most until all do."""
    return min(gather_s, GATHER_S_MAX) + min(link_s, LINK_S_MAX)


def capture_limit_s(link_s: float) -> float:
    """How long a task stands at most once all do."""
    return HELD_S_MAX + min(link_s, LINK_S_MAX)
