"""Output scrolls above the status line, whatever it is and however it is split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsv.watchdog.edge.screen import UNFINISHED_BYTES_MAX, Screen, fit_line, flush_line
from tests.support.screen import TerminalInMemory

WIDTH, STATUS = 40, "▸ step 3"


def shown(screen: Screen, terminal: TerminalInMemory) -> list[str]:
    terminal.feed(screen.render_rows(WIDTH))
    return terminal.rows


def test_output_scrolls_above_the_status_line_and_at_the_end_only_output_is_left() -> None:
    screen, terminal = Screen(), TerminalInMemory(WIDTH)
    screen.show_status(STATUS)
    screen.print_output(b"one\ntw")
    assert shown(screen, terminal) == ["one", "tw", STATUS]
    screen.print_output(b"o\n")
    screen.print_line(b"procsv: hear\n")
    screen.show_status("▸ step 4")
    assert shown(screen, terminal) == ["one", "two", "procsv: hear", "▸ step 4"]
    terminal.feed(screen.finish())
    assert terminal.rows == ["one", "two", "procsv: hear", ""]


def test_a_progress_bar_is_one_row_that_redraws_with_our_lines_above_it() -> None:
    screen, terminal = Screen(), TerminalInMemory(WIDTH)
    screen.show_status(STATUS)
    for percent in (1, 50, 100):
        screen.print_output(f"\r{percent:3d}% [{'#' * (percent // 2)}]".encode())
        rows = shown(screen, terminal)
        assert rows[0].startswith(f"{percent:3d}%")
        assert (len(rows), rows[-1]) == (2, STATUS)
        assert len(rows[0]) < WIDTH, "a second row could not be erased"
    screen.print_line(b"procsv: saved\n")
    assert shown(screen, terminal)[0] == "procsv: saved"
    screen.print_output(b"\n")
    assert shown(screen, terminal)[1].startswith("100% [####")
    assert "".join(terminal.rows[1:3]).endswith("]"), "whole, on two rows, once it has ended"


def test_nothing_is_written_while_nothing_has_changed() -> None:
    screen = Screen()
    screen.show_status(STATUS)
    assert screen.render_rows(WIDTH)
    screen.show_status(STATUS)
    screen.print_output(b"")
    assert screen.render_rows(WIDTH) == b""


@given(
    st.lists(st.sampled_from(["", "a", "step 7 loss 0.5", "x" * 39, "y" * 100, "épée"]), max_size=8),
    st.lists(st.integers(min_value=0, max_value=400), max_size=8),
)
def test_lines_arrive_unchanged_however_the_output_is_split(lines: list[str], cuts: list[int]) -> None:
    data = "\n".join(lines)
    screen, live, plain = Screen(), TerminalInMemory(WIDTH), TerminalInMemory(WIDTH)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for number, (start, end) in enumerate(pairwise(places)):
        screen.print_output(data[start:end].encode())
        screen.show_status(f"▸ step {number}")
        assert shown(screen, live)[-1] == f"▸ step {number}"
    live.feed(screen.finish())
    plain.feed(data.encode() + (b"\n" if lines and lines[-1] else b""))
    assert live.rows == plain.rows


@pytest.mark.parametrize(
    ("line", "looks"),
    [
        (b"plain", b"plain"),
        (b"windows\r", b"windows"),
        (b" 10%\r 20%\r100%", b"100%"),
        (b"long text\rshort", b"shorttext"),
        (b"long text\r\x1b[Kshort", b"short"),
        (b"12\x08\x0834", b"34"),
        (b"\x1b[32mok\x1b[0m", b"\x1b[32mok\x1b[0m"),
        (b"\r\x1b[32m50%\x1b[0m done", b"\x1b[32m50%\x1b[0m done"),
        (b"\x1b[2A\x1b[Jup and away", b"up and away"),
        (b"a\x1b[3Gb", b"a b"),
    ],
)
def test_a_line_is_shown_as_its_control_characters_leave_it(line: bytes, looks: bytes) -> None:
    assert flush_line(line) == looks


def test_a_growing_line_shows_its_end_and_a_bar_its_beginning() -> None:
    assert fit_line(b"." * 50 + b"now", 10) == b".......now"
    assert fit_line(b"\r 10% " + b"#" * 50, 10) == b" 10% #####"
    assert fit_line("電車電車電車".encode(), 5) == "電車".encode(), "wide characters take two columns"


def test_an_endless_line_has_a_bounded_length() -> None:
    screen = Screen()
    for _ in range(10):
        screen.print_output(b"." * UNFINISHED_BYTES_MAX)
        screen.render_rows(WIDTH)
    assert len(screen.finish()) <= UNFINISHED_BYTES_MAX + 100  # plus the bytes that erase a line
