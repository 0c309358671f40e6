"""Text from outside, made safe for a terminal: control characters are shown, not obeyed.

Used wherever a path, an argument, an exception or a program's output reaches a person.  Files and pipes get the bytes as
they are.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

COLUMN_GAP, COLUMN_MIN = 2, 6

# C0 but for tab and newline, DEL, C1, what turns the direction of writing round, and half surrogates
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

# What progress bars and colours are made of: return, backspace, colours, moves of the cursor, erasing, hiding the cursor.
_HARMLESS = rb"[\r\x08]|\x1b\[[0-9;]*[mABCDGJK]|\x1b\[\?25[hl]"
_OUTPUT = re.compile(rb"(" + _HARMLESS + rb")|[\x00-\x07\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
_UNFINISHED = re.compile(rb"(?:\x1b(?:\[\??[0-9;]{0,20})?|\xc2)\Z")


def printable(text: str) -> str:
    """`text` with its control characters written out: \\x1b for the one that begins an escape sequence."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def as_markup(text: str) -> str:
    """`text` for rich's markup: it is printed as it is, brackets and all."""
    from rich.markup import escape

    return escape(printable(text))


def make_table(columns: Iterable[str], right: Container[str] = ()) -> Table:
    """A table without lines, with the columns of `right` flushed right.

    A row is one line: where the terminal is too narrow, the widest columns end in "…".
    """
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    class OneLineTable(Table):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            cells = [(column.header, *column.cells) for column in self.columns]
            widths = [max(cell_len(Text.from_markup(str(cell)).plain) for cell in column) for column in cells]
            room = options.max_width - COLUMN_GAP * len(widths)
            for column, width in zip(self.columns, fit_widths(widths, room), strict=True):
                column.max_width = width
            return super().__rich_console__(console, options)

    table = OneLineTable(box=None, padding=(0, COLUMN_GAP, 0, 0), header_style="dim")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="ellipsis", no_wrap=True)
    return table


def fit_widths(widths: list[int], room: int) -> list[int]:
    """Widths of columns that fit into `room`: the widest give way first, and none below COLUMN_MIN."""
    fitted = list(widths)
    while sum(fitted) > room and max(fitted) > COLUMN_MIN:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted


class OutputFilter:
    """A program's output on its way to a terminal: colours and progress bars pass; titles, queries and the rest are shown."""

    def __init__(self) -> None:
        self._held = b""  # a sequence that is not yet whole

    def pass_on(self, data: bytes) -> bytes:
        """What of `data`, and of what was held back before, may be written now."""
        data = self._held + data
        cut = _UNFINISHED.search(data)
        self._held = cut[0] if cut is not None else b""
        return _OUTPUT.sub(_show_control, data[: len(data) - len(self._held)])

    def finish(self) -> bytes:
        """What is still held back, at the end of the output."""
        held, self._held = self._held, b""
        return _OUTPUT.sub(_show_control, held)


def _show_control(match: re.Match[bytes]) -> bytes:
    return match[1] or match[0].decode().encode("unicode_escape")
