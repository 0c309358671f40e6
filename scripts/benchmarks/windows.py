"""Compute how checkpoints delayed steps, from their times alone.

Called by the tables stall and rate. A window is the time from the beginning of a checkpoint (or
snapshot) to its end; windows that touch are merged. A step belongs to the window that it overlaps.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Span = tuple[float, float]  # begin and end, monotonic seconds

OUTSIDE_STEPS_MIN = 10  # with fewer, there is no figure for steps outside of checkpoints


@dataclass(frozen=True, slots=True)
class Felt:
    """How the training loop of one trial was delayed."""

    step_s: float  # median of the steps outside of windows, or of all
    stalls_s: tuple[float, ...]  # per window: its longest step less `step_s`
    lost_s: tuple[float, ...]  # per window: the total time of its steps above `step_s`
    jitter_s: float | None  # the longest step outside of windows less `step_s`
    steps_per_s: float
    slowdown: float | None  # share of steps per second that the windows cost


def feel(steps: Sequence[Span], spans: Iterable[Span]) -> Felt:
    windows = merge(spans)
    inside: list[list[float]] = [[] for _ in windows]
    outside: list[float] = []
    at = 0
    for begun_s, ended_s in steps:
        while at < len(windows) and windows[at][1] < begun_s:
            at += 1
        is_inside = at < len(windows) and windows[at][0] <= ended_s
        (inside[at] if is_inside else outside).append(ended_s - begun_s)
    enough = len(outside) >= OUTSIDE_STEPS_MIN
    everything = [ended_s - begun_s for begun_s, ended_s in steps]
    step_s = statistics.median(outside if enough else everything)
    felt = [window for window in inside if window]
    steps_per_s = len(steps) / (steps[-1][1] - steps[0][0])
    return Felt(
        step_s=step_s,
        stalls_s=tuple(max(window) - step_s for window in felt),
        lost_s=tuple(sum(window) - len(window) * step_s for window in felt),
        jitter_s=max(outside) - step_s if enough else None,
        steps_per_s=steps_per_s,
        slowdown=1 - steps_per_s * statistics.mean(outside) if enough else None,
    )


def merge(spans: Iterable[Span]) -> list[Span]:
    """Merge overlapping spans, and return them in order of time."""
    merged: list[Span] = []
    for begun_s, ended_s in sorted(spans):
        if merged and begun_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ended_s))
        else:
            merged.append((begun_s, ended_s))
    return merged
