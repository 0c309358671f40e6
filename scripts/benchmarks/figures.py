"""Represent the results of a benchmark before they are printed: figures, tables, bars. Pure.

The tables (stall.py, restart.py, …) make them, and report.py shows them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured quantity: its median and its spread over `samples` measurements."""

    median: float
    low: float
    high: float
    samples: int

    @staticmethod
    def of(values: Iterable[float]) -> Figure | None:
        """Return None if nothing was measured."""
        measured = sorted(values)
        if not measured:
            return None
        return Figure(statistics.median(measured), measured[0], measured[-1], len(measured))


Cell = str | int | float | Figure | None


@dataclass(frozen=True, slots=True)
class Column:
    """`unit` is printed after the title; `digits` counts decimals."""

    key: str
    title: str
    unit: str = ""
    digits: int = 1


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar, and what was measured against it."""

    what: str
    bar: str
    figure: str
    met: bool

    @staticmethod
    def at_most(what: str, limit: float, value: float, unit: str, digits: int = 1, how: str = "") -> Bar:
        return Bar(what, f"≤ {how}{limit:.{digits}f} {unit}".rstrip(), f"{value:.{digits}f} {unit}", value <= limit)

    @staticmethod
    def at_least(what: str, limit: float, value: float, unit: str, digits: int = 2, how: str = "") -> Bar:
        return Bar(what, f"≥ {how}{limit:.{digits}f} {unit}".rstrip(), f"{value:.{digits}f} {unit}", value >= limit)


@dataclass(frozen=True, slots=True)
class Chart:
    """What to draw of a table: one bar per row, named by the cells of `names`, as long as the
    median of `value`.
    """

    title: str
    names: tuple[str, ...]
    value: str
    digits: int = 0
    only: tuple[str, str] = (
        "",
        "",
    )  # a column and its content in the rows to draw, if only some are drawn

    def rows(self, table: Table) -> list[dict[str, Cell]]:
        key, wanted = self.only
        return [row for row in table.rows if row.get(key) == wanted] or table.rows

    def label(self, row: Mapping[str, Cell]) -> str:
        told = (row[name] for name in self.names)
        return ", ".join(f"{cell.median:g} s" if isinstance(cell, Figure) else str(cell) for cell in told)


@dataclass(slots=True)
class Table:
    """Rows of cells by column key; `notes` are printed under it."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: list[dict[str, Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    chart: Chart | None = None


def text_of(cell: Cell, column: Column) -> str:
    """Format a cell; a figure reads `median (low .. high)`."""
    match cell:
        case None:
            return "-"
        case str():
            return cell
        case int():
            return f"{cell:,}"
        case float():
            return f"{cell:,.{column.digits}f}"
        case _:
            text = f"{cell.median:,.{column.digits}f}"
            if cell.samples == 1:
                return text
            return f"{text} ({cell.low:,.{column.digits}f} .. {cell.high:,.{column.digits}f})"


def in_words(row: Mapping[str, Cell], columns: Iterable[Column]) -> str:
    """Return one row as one line, to show while a measurement of an hour is running."""
    told = [(column, row[column.key]) for column in columns if row.get(column.key) is not None]
    return ", ".join(
        cell
        if isinstance(cell, str)
        else f"{' '.join(column.title.split())} {text_of(cell, column)} {column.unit}".rstrip()
        for column, cell in told
    )
