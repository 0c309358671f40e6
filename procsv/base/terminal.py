"""Text from outside, made safe for a terminal: control characters are shown, not obeyed.

Used wherever a path, an argument, an exception or a program's output reaches a person.  Files and pipes get the bytes as
they are.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

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
    """A table without lines, with the columns of `right` flushed right."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


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
