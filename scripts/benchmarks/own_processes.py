"""Measure procsv's own processes beside a run's tasks: how many there are, and how much memory they
use.

Called by group.py. A page that several processes share counts in part for each (PSS). The template
is counted separately: its imports belong to the tasks, and it shares their pages with tasks forked
from it, so its part depends on what these have touched.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

KB_PER_MB = 1024
PROGRAM = "procsv.training"  # on the command line of the process that tasks are forked from


@dataclass(frozen=True, slots=True)
class Own:
    """What runs beside the tasks: the watchdog, the services, and the template."""

    processes: int
    mb: float  # of watchdog and services
    template_mb: float


def measure_own(watchdog: int, tasks: Collection[int]) -> Own:
    """Measure that watchdog's run now. `tasks`: the program's processes, which do not count."""
    programs = {each.pid for task in tasks for each in _tree(task)}
    ours = [each for each in _tree(watchdog) if each.pid not in programs]
    templates = [each for each in ours if PROGRAM in each.cmdline()]
    return Own(len(ours), _mb([each for each in ours if each not in templates]), _mb(templates))


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _mb(processes: list[psutil.Process]) -> float:
    texts = (Path(f"/proc/{each.pid}/smaps_rollup").read_text() for each in processes)
    return sum(int(size) for text in texts for size in re.findall(r"^Pss: +(\d+) kB$", text, re.MULTILINE)) / KB_PER_MB
