"""Table `idle`: what the processes beside the trainer need while it trains, and how fast the
command answers.

Called by __main__.py.
"""

from __future__ import annotations

import subprocess
import time

import psutil

from scripts.benchmarks.figures import Bar, Column, Figure, Table
from scripts.benchmarks.processes import environment, procsv_command
from scripts.benchmarks.runs import Program, Run, running
from scripts.benchmarks.settings import Settings
from scripts.benchmarks.stall import WORK

MB = 20.0
SAVE_S = 5.0
SETTLE_S = 8.0  # after the first step
SECONDS, QUICK_SECONDS = 20.0, 8.0
SAMPLES = 4
HELP_CALLS, STATUS_CALLS = 10, 5
BYTES_PER_MB = 1e6

WATCHDOG_MB_MAX, WATCHDOG_CPU_MAX = 40.0, 0.5
SUMMARY_MB_MAX = 60.0
HELP_S_MAX = 0.15
STATUS_S_MAX = 1.0

COLUMNS = (
    Column("what", "process"),
    Column("rss_mb", "resident", "MB"),
    Column("cpu", "of a core", "%", 2),
    Column("seconds", "wall time", "s", 3),
)


def measure(settings: Settings) -> Table:
    table = Table("idle", "What runs beside the trainer, and how fast the command answers", COLUMNS)
    settings.say("idle: a run of procsv launch")
    with running("procsv", Program(MB, settings.variables, WORK, SAVE_S)) as run:
        run.marks.listen(SETTLE_S)
        used = _watch(run, QUICK_SECONDS if settings.quick else SECONDS)
        status_s = [_timed("status", str(run.logdir), "--json") for _ in range(STATUS_CALLS)]
        run.stop()
    settings.say("idle: procsv --help")
    help_s = [_timed("--help") for _ in range(HELP_CALLS)]
    for role, (rss_mb, cpu) in used.items():
        table.rows.append({"what": role, "rss_mb": rss_mb, "cpu": cpu})
    table.rows.append({"what": "procsv --help", "seconds": Figure.of(help_s)})
    table.rows.append({"what": "procsv status --json", "seconds": Figure.of(status_s)})
    table.notes.append("the trainer trains all the time; the processes beside it save a small checkpoint now and then.")
    table.bars += _bars(used, Figure.of(help_s), Figure.of(status_s))
    return table


def _watch(run: Run, seconds: float) -> dict[str, tuple[Figure | None, float]]:
    """Return each process's resident MB and percent of a core over `seconds`, by role."""
    processes = {each["role"]: psutil.Process(each["pid"]) for each in run.status()["processes"] if each["pid"]}
    begun_s, spent_s = time.monotonic(), {role: _cpu_s(process) for role, process in processes.items()}
    rss: dict[str, list[float]] = {role: [] for role in processes}
    for _ in range(SAMPLES):
        run.marks.listen(seconds / SAMPLES)
        for role, process in processes.items():
            rss[role].append(process.memory_info().rss / BYTES_PER_MB)
    took_s = time.monotonic() - begun_s
    return {
        role: (Figure.of(rss[role]), 100 * (_cpu_s(process) - spent_s[role]) / took_s)
        for role, process in processes.items()
    }


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _timed(*args: str) -> float:
    begun_s = time.monotonic()
    subprocess.run(procsv_command(*args), env=environment(), stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - begun_s


def _bars(used: dict[str, tuple[Figure | None, float]], help_s: Figure | None, status_s: Figure | None) -> list[Bar]:
    bars = []
    watchdog_mb, watchdog_cpu = used["watchdog"]
    if watchdog_mb is not None:
        bars.append(Bar.at_most("watchdog, resident", WATCHDOG_MB_MAX, watchdog_mb.high, "MB"))
    bars.append(Bar.at_most("watchdog, at rest", WATCHDOG_CPU_MAX, watchdog_cpu, "% of a core", 2))
    summary_mb, _ = used["summary"]
    if summary_mb is not None:
        bars.append(Bar.at_most("summary service, resident", SUMMARY_MB_MAX, summary_mb.high, "MB"))
    if help_s is not None:
        bars.append(Bar.at_most("procsv --help", HELP_S_MAX, help_s.median, "s", 3))
    if status_s is not None:
        bars.append(Bar.at_most("procsv status", STATUS_S_MAX, status_s.high, "s", 2))
    return bars
