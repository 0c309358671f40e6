"""Hold the settings chosen by the user of the benchmarks. Made by __main__.py, read by the tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["resource", "ref"]
Arm = Literal["bare", "procsv", "supervisor", "monitored", "our_monitored", "saver", "keras"]

ARMS: tuple[Arm, ...] = ("procsv", "supervisor", "monitored")
NAMES: dict[Arm, str] = {
    "bare": "tf.Session",
    "procsv": "procsv",
    "supervisor": "tf Supervisor",
    "monitored": "tf Monitored",
    "our_monitored": "procsv Monitored",
    "saver": "plain Saver.save",
    "keras": "Keras BackupAndRestore",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """`say` shows what is being measured."""

    quick: bool
    rows: tuple[tuple[float, int], ...]  # for `stall`: megabytes, in how many variables
    kinds: tuple[Kind, ...]
    variables: int  # for the other tables
    repeats: int | None  # None: each table's own
    say: Callable[[str], None]
    keepers: bool = False  # circus and supervisord beside the shell loop
    every_s: tuple[float, ...] = (30.0,)  # between two kills in `goodput`
    kills: int = 4  # in each run of `goodput`
    sizes_mb: tuple[float, ...] = ()  # chosen by the user; empty: each table's own

    def repeats_or(self, usual: int, quick: int = 1) -> int:
        return self.repeats if self.repeats is not None else quick if self.quick else usual


@dataclass(frozen=True, slots=True)
class Trial:
    """What one process measures: `train` the times of steps around checkpoints, `calls` the cost of a trivial call."""

    what: Literal["train", "calls"]
    arm: Arm
    logdir: str = ""  # filled in by processes.py
    kind: Kind = "resource"
    mb: float = 0.0
    variables: int = 1
    work: int = 0  # matrix products a step
    seconds: float = 10.0
    save_s: float = 3600.0
    pause_s: float = 0.0  # after each step, with nothing to do
    check: bool = False  # read the checkpoints afterwards
    hooks: int | None = None  # in a monitored session whose calls are timed: none, or five
    sync: bool = False  # after each Saver.save, fsync its files, timed separately
    copy: bool = False  # afterwards, measure a copy of `mb` in memory
    between: bool = True  # snapshots between checkpoints, at procsv's own cadence
    cpu: bool = False  # measure the processor time of this process and its descendants
