"""Show the results: tables and bars on the terminal, and everything as JSON in a file.

Called by __main__.py. It never judges: the table that measured a bar says whether it is met.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from procsv import __version__
from scripts.benchmarks.figures import Bar, Table, text_of


def show(console: Console, table: Table) -> None:
    drawn = RichTable(title=table.title, title_justify="left", title_style="bold")
    for column in table.columns:
        is_text = all(isinstance(row.get(column.key), str) for row in table.rows)
        heading = f"{column.title}\n{column.unit}" if column.unit else column.title
        drawn.add_column(heading, justify="left" if is_text else "right")
    for row in table.rows:
        drawn.add_row(*(text_of(row.get(column.key), column) for column in table.columns))
    console.print(drawn)
    for note in table.notes:
        console.print(f"  {note}", highlight=False, style="dim")
    console.print()


def show_bars(console: Console, bars: list[Bar]) -> None:
    if not bars:
        return
    drawn = RichTable(title="The bars", title_justify="left", title_style="bold")
    for heading in ("what", "bar", "measured", ""):
        drawn.add_column(heading, justify="left")
    for bar in bars:
        style = "green" if bar.met else "red"
        drawn.add_row(bar.what, bar.bar, bar.figure, f"[{style}]{'met' if bar.met else 'not met'}[/]")
    console.print(drawn)


def machine() -> dict[str, str | int | float]:
    """Describe the machine of the measurement, and how busy it was."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "tensorflow": version("tensorflow"),
        "procsv": __version__,
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def write_json(path: Path, tables: list[Table], settings: dict[str, object]) -> None:
    bars = [dataclasses.asdict(bar) for table in tables for bar in table.bars]
    document = {
        "machine": machine(),
        "settings": settings,
        "tables": {table.name: _as_json(table) for table in tables},
        "bars": bars,
    }
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _as_json(table: Table) -> dict[str, object]:
    units = {column.key: column.unit for column in table.columns if column.unit}
    rows = [
        {key: dataclasses.asdict(cell) if dataclasses.is_dataclass(cell) else cell for key, cell in row.items()}
        for row in table.rows
    ]
    return {"title": table.title, "units": units, "rows": rows, "notes": table.notes}
