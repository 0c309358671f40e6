"""Curves of a run: the scalars of the program's event files, with what the page marks on them.

Used by page.py.  Reads event files only; changes nothing.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from procsv.base.journal.entries import CheckpointDurable
from procsv.base.outcome import NO_STEP
from procsv.base.units import show_size
from procsv.report.account import Account, Incarnation
from procsv.report.event_files import READ_BYTES_MAX, EventFileTail, Scalar, find_loss, newest_event_files, read_scalars

FILES_MAX = 40  # event files: the newest
BYTES_MAX = 2**26  # of each: its end
TAGS_MAX = 12
POINTS_MAX = 500  # of a curve; of more, the least and the largest of each piece are kept
MARKS_MAX = 300  # checkpoints: the last ones
STEP_RATE = "global_step/sec"  # that of TensorFlow's StepCounterHook
MEMORY = "procsv/memory_bytes"  # in the watchdog's own event file


class Curve(NamedTuple):
    name: str
    points: tuple[Scalar, ...]  # in the order of time, of steps that were kept


class Mark(NamedTuple):
    kind: Literal["crash", "preempted", "checkpoint"]
    time_s: float
    step: int
    text: str


def read_curves(logdir: Path) -> list[Curve]:
    """Of the scalars there, the loss first; a directory's name stands before the tags of the files in it."""
    found: dict[str, list[Scalar]] = collections.defaultdict(list)
    for path in newest_event_files(logdir, FILES_MAX):
        where = "" if path.parent == logdir else f"{path.parent.name}: "
        for scalar in _scalars(path):
            found[where + scalar.tag].append(scalar)
    rates = found.pop(STEP_RATE, [])
    loss = find_loss(found)
    names = sorted(found, key=lambda name: (name != loss, "loss" not in name.lower(), name))[:TAGS_MAX]
    curves = [Curve(name, thin(_kept(found[name]))) for name in names]
    rates = rates or _rates(max((_kept(points) for points in found.values()), key=len, default=[]))
    return curves + ([Curve("steps per second", thin(rates))] if rates else [])


def read_memory(home: Path) -> Curve | None:
    """Of the program, in all launches; `home` is the run's own directory."""
    points = [one for path in sorted(home.glob("events.out.tfevents.*")) for one in _scalars(path) if one.tag == MEMORY]
    return (
        Curve("memory of the program's process", thin(sorted(points, key=lambda one: one.time_s))) if points else None
    )


def _scalars(path: Path) -> list[Scalar]:
    with contextlib.suppress(OSError):
        tail, reads = EventFileTail(path, BYTES_MAX), min(path.stat().st_size, BYTES_MAX) // READ_BYTES_MAX + 1
        return [one for _ in range(reads) for record in tail.records() for one in read_scalars(record)]
    return []


def _kept(points: Iterable[Scalar]) -> list[Scalar]:
    """Without those that were made again: a later point of a step, or of one before it, takes their place."""
    kept: list[Scalar] = []
    for point in sorted(points, key=lambda one: one.time_s):
        while kept and kept[-1].step >= point.step:
            kept.pop()
        kept.append(point)
    return kept


def _rates(points: Sequence[Scalar]) -> list[Scalar]:
    """Steps a second between two points; of the time in which the program was restarted, too."""
    return [
        Scalar(STEP_RATE, b.step, b.time_s, (b.step - a.step) / (b.time_s - a.time_s))
        for a, b in itertools.pairwise(points)
        if b.time_s > a.time_s
    ]


def thin(points: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """At most POINTS_MAX of them, with every peak."""
    if len(points) <= POINTS_MAX:
        return tuple(points)
    pieces, kept = POINTS_MAX // 2, list[Scalar]()
    for number in range(pieces):
        piece = points[len(points) * number // pieces : len(points) * (number + 1) // pieces]
        ends = {min(piece, key=lambda one: one.value), max(piece, key=lambda one: one.value)}
        kept += sorted(ends, key=lambda one: (one.time_s, one.step))
    return tuple(kept)


def find_marks(account: Account) -> list[Mark]:
    """What happened, for the curves: each says of itself what it was."""
    made = [line for line in account.remarks if isinstance(line.entry, CheckpointDurable)][-MARKS_MAX:]
    saved = [
        Mark(
            "checkpoint",
            line.time,
            line.entry.step,
            f"checkpoint of step {line.entry.step}, {show_size(line.entry.bytes)}",
        )
        for line in made
        if isinstance(line.entry, CheckpointDurable)
    ]
    return saved + [mark for one in account.incarnations if (mark := _end(one, account)) is not None]


def _end(one: Incarnation, account: Account) -> Mark | None:
    """None of one that goes on, or with which the training has ended as it should."""
    if one.end_s is None or one.cause == "completed" or (one.cause == "stopped" and one is account.incarnations[-1]):
        return None
    step = max(one.last_step - one.lost_steps, NO_STEP)
    return Mark(
        "crash" if one.is_failure or one.ended_with_watchdog else "preempted", one.end_s, step, describe_end(one)
    )


def describe_end(one: Incarnation) -> str:
    """How an attempt has ended."""
    how = "its watchdog was killed" if one.ended_with_watchdog else f"{one.cause}, {one.evidence}"
    return f"start {one.number}: {how}, at step {one.last_step}"
