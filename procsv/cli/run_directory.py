"""The directory of a run for which nobody has said --logdir: `runs/<target>`, or `runs/<target>-N` of a later one.

Used by launch.py.
"""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

RUNS = Path("runs")


def newest_directory(name: str) -> Path:
    """Of the newest run of target `name`; where the first is to be if there is none."""
    return max(_numbered(name), default=(1, RUNS / name))[1]


def make_new_directory(name: str) -> Path:
    """Makes the directory of the next run.  OSError."""
    newest = max((number for number, _ in _numbered(name)), default=0)
    for number in itertools.count(newest + 1):
        directory = RUNS / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):  # another launch has just made it
            directory.mkdir(parents=True)
            return directory
    raise AssertionError("there is always a next number")


def _numbered(name: str) -> list[tuple[int, Path]]:
    """The runs of `name` that are there, by their numbers: that without one is the first."""
    found = [(1, RUNS / name)] if (RUNS / name).is_dir() else []
    for directory in RUNS.glob("*-*"):
        stem, _, number = directory.name.rpartition("-")
        if stem == name and number.isdecimal() and int(number) > 1 and directory.is_dir():
            found.append((int(number), directory))
    return found
