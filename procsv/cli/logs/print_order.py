"""Order in which the processes of a run have printed, as far as it is known.

Used by command.py.  Pure.  The watchdog has noted which log had which size when (base/run/log_growth.py): what a log
has gained from one mark to the next was printed in between.  What no mark tells of comes where its log was printed to
last.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from procsv.base.run.log_growth import Mark


class Part(NamedTuple):
    """A file of a log as it lies there: one before a rotation, or the newest."""

    file: int  # its inode
    size: int


class Printed(NamedTuple):
    """An attempt whose output is to be shown."""

    log: str  # the name of its log
    number: int
    last_s: float  # Unix time at which it has printed last
    parts: tuple[Part, ...]  # the oldest first


class Turn(NamedTuple):
    """Output of one attempt, to be shown next: all that its log holds up to `end`, as far as it was not shown."""

    attempt: int  # its place in the sequence
    end: float  # bytes from the beginning of its oldest part; infinite in its last turn


class _When(NamedTuple):
    """The place of a mark in time.  Its line says more than its time: the clock may have been set back."""

    time_s: float
    line: float


_Marked = tuple[_When, Mark]


def order_of_printing(attempts: Sequence[Printed], marks: Iterable[Mark]) -> list[Turn]:
    """Every attempt has a last turn, and as many before it as there are marks of it."""
    by_log = defaultdict[str, list[_Marked]](list)
    for when, mark in _in_time(marks):
        by_log[mark.log].append((when, mark))
    turns: list[tuple[_When, int, Turn]] = []
    for place, attempt in enumerate(attempts):
        ends = list(_ends(attempt.parts, by_log[attempt.log]))
        last = max([_When(attempt.last_s, math.inf), *(when for when, _ in ends[-1:])])
        turns += ((when, attempt.number, Turn(place, end)) for when, end in (*ends, (last, math.inf)))
    return [turn for *_, turn in sorted(turns, key=lambda one: one[:2])]  # those of an attempt stay in their order


def _in_time(marks: Iterable[Mark]) -> Iterator[_Marked]:
    time_s = 0.0
    for line, mark in enumerate(marks):
        time_s = max(time_s, mark.time)
        yield _When(time_s, line), mark


def _ends(parts: Sequence[Part], marks: Sequence[_Marked]) -> Iterator[tuple[_When, int]]:
    """Up to which byte of all parts together had been printed when."""
    begin = 0
    for part, its in zip(parts, _by_part(parts, marks), strict=True):
        yield from ((when, begin + min(mark.size, part.size)) for when, mark in its)
        begin += part.size


def _by_part(parts: Sequence[Part], marks: Sequence[_Marked]) -> list[Sequence[_Marked]]:
    """The marks of each part, found from the newest on.

    A part may have none: nobody has looked at it between two rotations, or since the last one.
    """
    files = [(file, list(its)) for file, its in groupby(marks, key=lambda one: one[1].file)]
    is_copy = {file for file, _ in files}.isdisjoint(part.file for part in parts)  # a copied logdir has other inodes
    found: list[Sequence[_Marked]] = []
    for part in reversed(parts):
        is_its = bool(files) and (is_copy or files[-1][0] == part.file)
        found.insert(0, _since_emptied(files.pop()[1]) if is_its else ())
    return found


def _since_emptied(marks: Sequence[_Marked]) -> Sequence[_Marked]:
    """Those since the file was smaller than before: somebody has cut it, and what was in it is gone."""
    sizes = [mark.size for _, mark in marks]
    return marks[max((now for now in range(1, len(sizes)) if sizes[now] < sizes[now - 1]), default=0) :]
