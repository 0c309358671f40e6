"""Draw a table's chart: one horizontal bar per row, as an SVG that needs no script and no font of
its own.

Called by __main__.py for `--charts`. Pure: the same table gives the same text.
"""

from __future__ import annotations

from html import escape

from scripts.benchmarks.figures import Figure, Table

WIDTH, LABEL_WIDTH, BAR_WIDTH_MAX = 960, 430, 430
TOP, ROW_HEIGHT, BAR_HEIGHT = 50, 38, 26
OURS, THEIRS, INK = "#2a7f62", "#8a8f98", "#222222"


def draw(table: Table) -> str:
    """Return the SVG of `table.chart`. The bars are its medians; the first words of a row's name
    say which arm it is.
    """
    assert table.chart is not None, f"{table.name} has no chart"
    chart = table.chart
    rows = [
        (chart.label(row), cell.median) for row in chart.rows(table) if isinstance(cell := row[chart.value], Figure)
    ]
    most = max((value for _, value in rows), default=1.0)
    height = TOP + ROW_HEIGHT * len(rows) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="15" role="img">',
        f"<title>{escape(chart.title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="28" font-size="16" font-weight="bold" fill="{INK}">{escape(chart.title)}</text>',
    ]
    for number, (label, value) in enumerate(rows):
        y, width = TOP + ROW_HEIGHT * number, round(BAR_WIDTH_MAX * value / most)
        colour = OURS if "procsv" in label else THEIRS
        lines += [
            f'<text x="{LABEL_WIDTH - 10}" y="{y + 19}" text-anchor="end" fill="{INK}">{escape(label)}</text>',
            f'<rect x="{LABEL_WIDTH}" y="{y}" width="{max(width, 1)}" height="{BAR_HEIGHT}" fill="{colour}"/>',
            f'<text x="{LABEL_WIDTH + max(width, 1) + 8}" y="{y + 19}" fill="{INK}">{value:,.{chart.digits}f}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
