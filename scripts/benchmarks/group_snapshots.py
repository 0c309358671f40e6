"""Table `group-snapshots`: what a snapshot of variables on a parameter server costs the chief and
the workers.

Called by __main__.py. In one run of a chief, two workers and a server, the chief takes snapshots in
turn in four ways: captured by the server; the same with all tasks held between two steps; fetched
by the chief over gRPC; and with TensorFlow's Saver.save, whose file the server writes.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from scripts.benchmarks.figures import Bar, Cell, Column, Figure, Table
from scripts.benchmarks.group_runs import CHIEF, OTHER, SERVER, WORKER, Group, Kind, group_running, program_args
from scripts.benchmarks.processes import END_S_MAX
from scripts.benchmarks.settings import Settings

MB, VARIABLES, PAUSE_S = 200.0, 50, 0.02
STALL_MS_MAX = 36.0  # for the server's own capture, from a trial on a loaded machine
RUN_S_MAX, LISTEN_S = 1200.0, 1.0
TASKS = Kind(
    "scripts.benchmarks.group_snapshots_program",
    (CHIEF, WORKER, OTHER),
    (SERVER,),
    ("--workers", "2", "--ps", "1", "--consistent-snapshots", "--snapshot-secs", "3600"),
)
NAMES = {
    "servers": "captured by the server",
    "held": "the same, all tasks held between two steps",
    "chief": "fetched by the chief over gRPC",
    "saver": "TensorFlow's Saver.save",
}
COLUMNS = (
    Column("way", "snapshot"),
    Column("stall_ms", "the chief waits", "ms", 1),
    Column("whole_ms", "until it is whole", "ms", 0),
    Column("lost_ms", "steps of a worker\nlose meanwhile", "ms", 0),
)


@dataclass(slots=True)
class Found:
    """All snapshots taken in one way, in milliseconds."""

    stall: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)  # by each worker


def measure(settings: Settings) -> Table:
    mb, rounds = (settings.sizes_mb or (MB,))[0], settings.repeats_or(usual=8, quick=3)
    settings.say(f"group-snapshots: {rounds} rounds of {len(NAMES)} snapshots")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found"
        args = program_args(found=file, mb=mb, variables=VARIABLES, pause_s=PAUSE_S, rounds=rounds)
        with group_running(TASKS, "procsv", args) as group:
            deadline_s = time.monotonic() + RUN_S_MAX
            while group.process.poll() is None and time.monotonic() < deadline_s:
                group.listen(LISTEN_S)
            if group.process.wait(END_S_MAX) != 0:
                raise group.failed(f"exit code {group.process.returncode}")
            taken = [json.loads(line) for line in file.read_text().splitlines()]
    found, step_ms = _evaluate(group, taken)
    table = Table("group-snapshots", f"Snapshots of {mb:g} MB in {VARIABLES} variables on a server, in turns", COLUMNS)
    table.rows += [_row(name, found[way]) for way, name in NAMES.items()]
    table.notes.append(f"a step of a worker takes {step_ms:.0f} ms; each changes all of it.")
    ours, fetched = statistics.median(found["servers"].stall), statistics.median(found["chief"].stall)
    table.bars += [
        Bar.at_most("captured by the server: the chief waits, median", STALL_MS_MAX, ours, "ms"),
        Bar.at_most("the same, in shares of a fetch over gRPC", 0.1, ours / fetched, "", 3),
    ]
    return table


def _evaluate(group: Group, taken: list[tuple[str, float, float, float]]) -> tuple[dict[str, Found], float]:
    """Return what each way has cost, and the milliseconds of a worker's step without a snapshot."""
    found: dict[str, Found] = defaultdict(Found)
    usual_s = {}
    for worker in (WORKER, OTHER):
        quiet = [
            seconds
            for (*_, ended_s), (_, begun_s, *_) in itertools.pairwise(taken)
            for seconds in group.pauses(worker, (ended_s + begun_s) / 2, begun_s)
        ]
        usual_s[worker] = statistics.fmean(sorted(quiet)[: -max(1, len(quiet) // 20)])  # without the longest steps
    for way, begun_s, stalled_s, whole_s in taken:
        each = found[way]
        each.stall.append((stalled_s - begun_s) * 1e3)
        each.whole.append((whole_s - begun_s) * 1e3)
        for worker, step_s in usual_s.items():
            each.lost += [sum(s - step_s for s in group.pauses(worker, begun_s, whole_s)) * 1e3]
    return found, statistics.median(usual_s.values()) * 1e3


def _row(name: str, found: Found) -> dict[str, Cell]:
    return {
        "way": name,
        "stall_ms": Figure.of(found.stall),
        "whole_ms": Figure.of(found.whole),
        "lost_ms": Figure.of(found.lost),
    }
