"""Read a run's curves from the program's event files, and the marks to draw on them.

Used by page.py. It only reads event files.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from procsv.base.journal.entries import CheckpointDurable
from procsv.base.units import show_size
from procsv.report.account import Account, Incarnation
from procsv.report.event_files import READ_BYTES_MAX, EventFileTail, Scalar, find_loss, newest_event_files, read_scalars

FILES_MAX = 40  # the newest event files
BYTES_MAX = 2**26  # read from all files together, the newest first; only the end of the last file may fit
TAGS_MAX = 12
POINTS_MAX = 500  # per curve; a longer curve keeps the minimum and maximum of each piece
MARKS_MAX = 300  # the last checkpoints
STEP_RATE = "global_step/sec"  # written by TensorFlow's StepCounterHook
MEMORY = "procsv/memory_bytes"  # in the watchdog's own event file


class Curve(NamedTuple):
    name: str
    points: tuple[Scalar, ...]  # the kept steps, ordered by time


class CurveMark(NamedTuple):
    kind: Literal["crash", "preempted", "checkpoint"]
    time_s: float
    text: str


def read_curves(logdir: Path) -> list[Curve]:
    """Read the curves of the scalars in `logdir`, the loss first.

    The tags of files in a subdirectory are prefixed with its name.
    """
    found: dict[str, list[Scalar]] = collections.defaultdict(list)
    for path, scalar in _scalars(newest_event_files(logdir, FILES_MAX)):
        where = "" if path.parent == logdir else f"{path.parent.name}: "
        found[where + scalar.tag].append(scalar)
    rates = found.pop(STEP_RATE, [])  # a rate from other scalars' steps would be wrong: they may be batches or epochs
    loss = find_loss(found)
    names = sorted(found, key=lambda name: (name != loss, "loss" not in name.lower(), name))[:TAGS_MAX]
    curves = [Curve(name, thin(_kept(found[name]))) for name in names]
    return curves + ([Curve("steps per second", thin(_kept(rates)))] if rates else [])


def read_memory(home: Path) -> Curve | None:
    """Read the memory of the program over all launches. `home` is the run's own directory."""
    points = [one for _, one in _scalars(sorted(home.glob("events.out.tfevents.*"))) if one.tag == MEMORY]
    points.sort(key=lambda one: one.time_s)
    return Curve("memory of the program's process", thin(points)) if points else None


def _scalars(paths: Sequence[Path]) -> Iterator[tuple[Path, Scalar]]:
    """Yield the scalars of the event files in `paths`, which has the newest file last.

    If the files are larger than BYTES_MAX, only the newest part is read.
    """
    left = BYTES_MAX
    for path in reversed(paths):
        with contextlib.suppress(OSError):
            size = min(path.stat().st_size, left)
            left -= size
            tail = EventFileTail(path, size)
            for _ in range(size // READ_BYTES_MAX + 1 if size else 0):
                yield from ((path, one) for record in tail.records() for one in read_scalars(record))


def _kept(points: Iterable[Scalar]) -> list[Scalar]:
    """Drop the points of steps that the program redid.

    A later point replaces every point at its step or beyond.
    """
    kept: list[Scalar] = []
    for point in sorted(points, key=lambda one: one.time_s):
        while kept and kept[-1].step >= point.step:
            kept.pop()
        kept.append(point)
    return kept


def thin(points: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """Reduce to at most POINTS_MAX points, keeping every peak."""
    if len(points) <= POINTS_MAX:
        return tuple(points)
    pieces, kept = POINTS_MAX // 2, list[Scalar]()
    for number in range(pieces):
        piece = points[len(points) * number // pieces : len(points) * (number + 1) // pieces]
        ends = {min(piece, key=lambda one: one.value), max(piece, key=lambda one: one.value)}
        kept += sorted(ends, key=lambda one: (one.time_s, one.step))
    return tuple(kept)


def find_marks(account: Account) -> list[CurveMark]:
    """Return the events to mark on the curves, each with a text that describes it."""
    saved = [
        CurveMark("checkpoint", line.time, f"checkpoint of step {line.entry.step}, {show_size(line.entry.bytes)}")
        for line in account.remarks
        if isinstance(line.entry, CheckpointDurable)
    ]
    return saved[-MARKS_MAX:] + [mark for one in account.incarnations if (mark := _end(one, account)) is not None]


def _end(one: Incarnation, account: Account) -> CurveMark | None:
    """Return the mark of an attempt's end; None if it still runs or ended as intended."""
    if one.end_s is None or one.cause == "completed" or (one.cause == "stopped" and one is account.incarnations[-1]):
        return None
    kind: Literal["crash", "preempted"] = "crash" if one.is_failure or one.ended_with_watchdog else "preempted"
    return CurveMark(kind, one.end_s, describe_end(one))


def describe_end(one: Incarnation) -> str:
    """Say how an attempt ended."""
    how = "its watchdog was killed" if one.ended_with_watchdog else f"{one.cause}, {one.evidence}"
    return f"attempt {one.number}: {how}, at step {one.last_step}"
