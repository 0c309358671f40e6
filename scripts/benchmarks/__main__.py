"""`scripts/bench [TABLE …]`: measure, print tables and bars, write JSON.

Timings are never asserted: the exit code is 0 whatever they are, and 1 only if something could not
be measured.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from scripts.benchmarks import (
    chart,
    cost,
    fetch,
    goodput,
    group,
    group_snapshots,
    idle,
    keras_cost,
    keras_restart,
    launch,
    loss,
    machines,
    malloc,
    monitored,
    overhead,
    preempt,
    rate,
    report,
    restart,
    restore,
    save,
    slurm,
    stall,
    storm,
)
from scripts.benchmarks.figures import Table
from scripts.benchmarks.processes import TrialFailed
from scripts.benchmarks.settings import Kind, Settings

TABLES: dict[str, Callable[[Settings], Table]] = {
    "stall": stall.measure,
    "cost": cost.measure,
    "monitored": monitored.measure,
    "rate": rate.measure,
    "restart": restart.measure,
    "storm": storm.measure,
    "preempt": preempt.measure,
    "goodput": goodput.measure,
    "group": group.measure,
    "group-snapshots": group_snapshots.measure,
    "loss": loss.measure,
    "save": save.measure,
    "restore": restore.measure,
    "overhead": overhead.measure,
    "hooks": monitored.measure_hooks,
    "idle": idle.measure,
    "launch": launch.measure,
    "malloc": malloc.measure,
    "keras": keras_cost.measure,
    "keras-rate": keras_cost.measure_rate,
    "keras-save": keras_cost.measure_saves,
    "keras-restart": keras_restart.measure,
    "keras-restore": keras_restart.measure_restore,
    "machines": machines.measure,
    "slurm": slurm.measure,
    "fetch": fetch.measure,
}
KINDS: tuple[Kind, ...] = ("resource", "ref")
QUICK_TABLES = tuple(
    name
    for name in TABLES
    if name
    not in (
        "cost",
        "preempt",
        "goodput",
        "group",
        "group-snapshots",
        "loss",
        "save",
        "restore",
        "keras-restore",
        "machines",
        "slurm",
    )
)  # what needs its time
ROWS = ((2.0, 1), (2.0, 100), (200.0, 1), (200.0, 100), (2000.0, 100), (200.0, 10_000))
QUICK_ROWS = ((200.0, 100),)
VARIABLES = 50  # in every table except `stall`
WIDTH = 190  # of a report in a file, so that rows are not wrapped


def main(argv: list[str] | None = None) -> int:
    args = _parse(argv)
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    progress = Console(stderr=True, style="dim", highlight=False, soft_wrap=True)
    begun_s = time.monotonic()

    def say(text: str) -> None:
        progress.print(f"{time.monotonic() - begun_s:5.0f} s  {text}")

    kinds = tuple(kind for kind in KINDS if kind in (args.kinds or KINDS))
    settings = Settings(
        args.quick,
        _rows(args),
        kinds,
        VARIABLES,
        args.repeats,
        say,
        args.keepers,
        tuple(args.every),
        args.kills,
        tuple(args.mb or ()),
    )
    tables, failed = [], []
    for name in args.tables or (QUICK_TABLES if args.quick else TABLES):
        try:
            table = TABLES[name](settings)
        except TrialFailed as failure:
            failed.append(name)
            progress.print(f"{name} could not be measured: {failure}", style="red")
            continue
        tables.append(table)
        report.show(console, table)
        if args.charts is not None and table.chart is not None:
            (args.charts / f"{name}.svg").write_text(chart.draw(table))
    report.show_bars(console, [bar for table in tables for bar in table.bars])
    if args.json is not None:
        chosen = {
            name: getattr(args, name)
            for name in ("quick", "mb", "kinds", "vars", "repeats", "keepers", "every", "kills")
        }
        report.write_json(args.json, tables, {**chosen, "seconds": round(time.monotonic() - begun_s)})
    if failed:
        progress.print(f"could not be measured: {', '.join(failed)}", style="red")
    return 1 if failed else 0


def _rows(args: argparse.Namespace) -> tuple[tuple[float, int], ...]:
    """Return every size with every number of variables, if either was chosen."""
    if not args.mb and not args.vars:
        return QUICK_ROWS if args.quick else ROWS
    return tuple(itertools.product(args.mb or (200.0,), args.vars or (100,)))


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Measure procsv beside TensorFlow's own supervisors on the same graphs."
    )
    parser.add_argument(
        "tables", nargs="*", metavar="TABLE", help=f"{', '.join(TABLES)}; default: all (quick: those of some minutes)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repetitions: 4 minutes instead of 45")
    parser.add_argument(
        "--charts", type=Path, metavar="DIR", help="draw cost and goodput there, as cost.svg and goodput.svg"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    usual = ", ".join(f"{mb:g} in {count:,}" for mb, count in ROWS)
    parser.add_argument(
        "--mb", type=float, nargs="+", metavar="MB", help=f"sizes for `stall` and `cost` (rows by default: {usual})"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help="kinds of variables for `stall` (both)")
    parser.add_argument("--vars", type=int, nargs="+", metavar="N", help="numbers of variables, each with each size")
    parser.add_argument("--repeats", type=int, metavar="N", help="repetitions of each measurement")
    parser.add_argument(
        "--every", type=float, nargs="+", default=[30.0], metavar="S", help="`goodput`: time between two kills (30)"
    )
    parser.add_argument("--kills", type=int, default=4, metavar="N", help="`goodput`: kills in each run (4)")
    parser.add_argument(
        "--keepers",
        action="store_true",
        help="`restart`, `storm`, `goodput`: also under circus and supervisord, from PyPI",
    )
    args = parser.parse_args(argv)
    unknown = [name for name in args.tables if name not in TABLES]
    if unknown:
        parser.error(f"there is no table {unknown[0]}; there are {', '.join(TABLES)}")
    return args


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)  # end what was started on the way out
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
