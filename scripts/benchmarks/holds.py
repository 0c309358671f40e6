"""Table `holds`: how long workers stand while the chief captures, of one machine by files, and of several over sockets.

Called by __main__.py.  All processes are on this machine; those of several machines speak by TCP with CURVE as others do.  Nothing is
captured: what is measured is the hold itself, to which the capture comes.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from procsv.base.identity import TaskId
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.messages import HoldOffer, HoldTold
from procsv.training.holds.far_holder import FarHolder
from procsv.training.runtime.step_gate import StepGate
from procsv.training.runtime.step_hold import SETTLE_S
from scripts.benchmarks.figures import Column, Figure, Table
from scripts.benchmarks.holds_program import STEP_S, paths_in
from scripts.benchmarks.processes import END_S_MAX, ROOT, TrialFailed, environment, scratch
from scripts.benchmarks.settings import Settings

CLOCK, PAUSE = SystemClock(), threading.Event()
FILES, SOCKETS = "files", "sockets"
NAMES = {FILES: "of one machine", SOCKETS: "of machines of their own"}
WORKERS, QUICK_WORKERS = (2, 8, 32), (2,)
GAP_S_MIN, GAP_S_MAX = 0.03, 0.05  # between two holds, by chance: they are to meet any moment of a step
GATHER_S = 0.5  # more than a step takes on a busy machine

COLUMNS = (
    Column("what", "workers"),
    Column("late_ms", "a worker's step\nbegins later", "ms", 2),
    Column("chief_ms", "the chief waits", "ms", 2),
    Column("whole", "held", "%", 0),
)


def measure(settings: Settings) -> Table:
    holds = settings.repeats_or(usual=300, quick=100)
    table = Table(
        "holds", f"{holds} holds of workers whose steps take {STEP_S * 1e3:g} ms, with nothing captured", COLUMNS
    )
    for workers in QUICK_WORKERS if settings.quick else WORKERS:
        for way, name in NAMES.items():
            settings.say(f"holds: {workers} workers {name}")
            late, waits, whole = _hold(way, workers, holds)
            row = {"what": f"{workers} {name}", "late_ms": Figure.of(late), "chief_ms": Figure.of(waits)}
            table.rows.append({**row, "whole": 100 * whole / holds})
    table.notes.append(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the end.")
    return table


def _hold(way: str, workers: int, holds: int) -> tuple[list[float], list[float], int]:
    """Milliseconds of each late step of a worker, and of each hold in the chief; how many were whole."""
    tasks = [TaskId("worker", number) for number in range(workers)]
    waits, whole, late, chance = list[float](), 0, list[float](), random.Random(way)
    with scratch() as folder, contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_worker(way, number, folder)) for number in range(workers)]
        offers = [msgspec.json.decode(_news(process), type=HoldOffer | None) for process in processes]
        holder: Any
        if way == FILES:
            holder = StepGate(paths_in(folder), TaskId("chief"), tasks, CLOCK)
        else:
            holder = FarHolder(dict.fromkeys(tasks, "127.0.0.1"), CLOCK, lambda: None, is_first=True)
            for task, offer in zip(tasks, offers, strict=True):
                holder.told(HoldTold(task, 1, offer))
        stack.callback(holder.close)
        PAUSE.wait(2 * SETTLE_S)
        for _ in range(holds):
            PAUSE.wait(chance.uniform(GAP_S_MIN, GAP_S_MAX))
            begun_s = time.perf_counter()
            with holder.hold(GATHER_S) as hold:
                pass
            waits.append((time.perf_counter() - begun_s) * 1e3)
            whole += hold.is_whole
        for process in processes:
            assert process.stdin is not None, "it is a pipe"
            process.stdin.close()
            late += msgspec.json.decode(_news(process), type=list[float])
    return late, waits, whole


@contextlib.contextmanager
def _worker(way: str, number: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "scripts.benchmarks.holds_program", way, str(number), str(folder)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=environment(), cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait(END_S_MAX)
        for stream in (process.stdin, process.stdout):
            assert stream is not None, "they are pipes"
            stream.close()


def _news(process: subprocess.Popen[bytes]) -> bytes:
    """What it says next, as JSON."""
    assert process.stdout is not None, "it is a pipe"
    line = process.stdout.readline()
    if not line.startswith(b"= "):
        raise TrialFailed("holds: a worker has ended")
    return line[2:]
