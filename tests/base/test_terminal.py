"""Text from outside reaches a terminal as text, whatever it contains."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from procsv.base.terminal import OutputFilter, as_markup, fit_widths, make_table, printable

EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egnp.\udcff"


def test_control_characters_are_escaped_and_everything_else_stays() -> None:
    assert printable(EVIL) == r"\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egnp.\udcff"
    assert printable("épée 🚂\n\tfour") == "épée 🚂\n\tfour"


@pytest.mark.parametrize(
    "text", ["[/b]", "/job:localhost/replica:0", "[red]x", "a\\b", "\\[x]", "[bold", "x [/] y", EVIL]
)
def test_markup_of_any_text_prints_exactly_that_text(text: str) -> None:
    out = io.StringIO()
    Console(file=out, highlight=False, width=200).print(as_markup(text))
    assert out.getvalue() == f"{printable(text)}\n"


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_a_table_row_is_one_line_and_its_widest_columns_shrink_first(columns: int) -> None:
    table = make_table(("start", "from", "ended"), right=("start",))
    table.add_row("12", "memory, step 7", "killed: " + "SIGKILL, sender unknown " * 4)
    table.add_row("13", "memory, step 9", "completed")
    out = io.StringIO()
    Console(file=out, highlight=False, width=columns).print(table)
    header, *rows = [line.rstrip() for line in out.getvalue().splitlines()]
    assert header == "start  from            ended"
    assert [row.split()[0] for row in rows] == ["12", "13"]
    assert all("memory, step" in row for row in rows)
    assert rows[0].endswith("…" if columns < 120 else "unknown")


def test_columns_shrink_no_more_than_they_must() -> None:
    assert fit_widths([3, 10, 50], 40) == [3, 10, 27]
    assert fit_widths([3, 10, 5], 40) == [3, 10, 5]
    assert sum(fit_widths([30, 30, 30], 10)) == 18, "no column is made so narrow that nothing can be read"


def test_colours_and_progress_bars_reach_a_terminal_and_titles_and_queries_do_not() -> None:
    bar = b"\x1b[?25l\r\x1b[32m50%\x1b[0m\x1b[K\x1b[1A\x08\n\tdone \xf0\x9f\x9a\x82"
    assert OutputFilter().pass_on(bar) == bar
    evil = b"\x1b]52;c;cm0gLXJm\x07\x1b[6n\x1bP\xc2\x9b0c\x00"
    assert OutputFilter().pass_on(evil) == rb"\x1b]52;c;cm0gLXJm\x07\x1b[6n\x1bP\x9b0c\x00"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_sequence_that_arrives_in_pieces_gives_the_same_result(size: int) -> None:
    data = b"a\x1b[31mred\x1b[0m\x1b]0;title\x07\xc2\x9b\xc3\xa9\x1b[?25h\x1b["
    filtered, out = OutputFilter(), b""
    for start in range(0, len(data), size):
        out += filtered.pass_on(data[start : start + size])
    out += filtered.finish_output()
    assert out == b"a\x1b[31mred\x1b[0m" + rb"\x1b]0;title\x07" + rb"\x9b" + b"\xc3\xa9\x1b[?25h" + rb"\x1b" + b"["
