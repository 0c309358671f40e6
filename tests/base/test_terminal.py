"""What comes from outside reaches a terminal as text, whatever it holds."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from procsv.base.terminal import OutputFilter, as_markup, printable

EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egnp.\udcff"


def test_control_characters_are_written_out_and_everything_else_stays() -> None:
    assert printable(EVIL) == r"\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egnp.\udcff"
    assert printable("épée 🚂\n\tfour") == "épée 🚂\n\tfour"


@pytest.mark.parametrize(
    "text", ["[/b]", "/job:localhost/replica:0", "[red]x", "a\\b", "\\[x]", "[bold", "x [/] y", EVIL]
)
def test_markup_of_any_text_prints_that_text(text: str) -> None:
    out = io.StringIO()
    Console(file=out, highlight=False, width=200).print(as_markup(text))
    assert out.getvalue() == f"{printable(text)}\n"


def test_colours_and_progress_bars_pass_a_terminal_and_titles_and_queries_do_not() -> None:
    bar = b"\x1b[?25l\r\x1b[32m50%\x1b[0m\x1b[K\x1b[1A\x08\n\tdone \xf0\x9f\x9a\x82"
    assert OutputFilter().pass_on(bar) == bar
    evil = b"\x1b]52;c;cm0gLXJm\x07\x1b[6n\x1bP\xc2\x9b0c\x00"
    assert OutputFilter().pass_on(evil) == rb"\x1b]52;c;cm0gLXJm\x07\x1b[6n\x1bP\x9b0c\x00"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_sequence_that_arrives_in_pieces_is_the_same(size: int) -> None:
    data = b"a\x1b[31mred\x1b[0m\x1b]0;title\x07\xc2\x9b\xc3\xa9\x1b[?25h\x1b["
    filtered, out = OutputFilter(), b""
    for start in range(0, len(data), size):
        out += filtered.pass_on(data[start : start + size])
    out += filtered.finish()
    assert out == b"a\x1b[31mred\x1b[0m" + rb"\x1b]0;title\x07" + rb"\x9b" + b"\xc3\xa9\x1b[?25h" + rb"\x1b" + b"["
