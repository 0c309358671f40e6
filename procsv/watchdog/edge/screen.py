"""Draw the terminal of a launch: output that scrolls above live rows.

Used by console.py. Pure: the Screen returns the bytes to write. Below the scrolled output there are
up to two live rows: the program's unfinished line, such as a progress bar, and the status line. For
each block of output, the rows are erased and drawn again in a single write, so they do not flicker.
"""

from __future__ import annotations

import re
import unicodedata

# We end an unfinished line that is longer than this. If the line redraws itself, we keep only its last REDRAWN_BYTES
# instead, because the rest is no longer visible.
UNFINISHED_BYTES_MAX = 2**16
REDRAWN_BYTES = 4096
COLUMN_MAX = 1000  # the last column that a cursor movement can reach
_MOVES = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])")
_STYLE_ONLY = re.compile(rb"[^\x1b\r\x08]*(?:\x1b\[[0-9;]*m[^\x1b\r\x08]*)*")
_ERASE_BELOW, _PLAIN = b"\x1b[J", "\x1b[0m"


class Screen:
    def __init__(self) -> None:
        self._unfinished = b""  # the program's unfinished line
        self._whole: list[bytes] = []  # complete lines to write
        self._status = ""
        self._rows = 0  # how many live rows the terminal shows
        self._is_stale = False  # something has changed since `render_rows`

    def print_output(self, data: bytes) -> None:
        """Add output of the program, as OutputFilter has filtered it."""
        if not data:
            return
        *lines, rest = (self._unfinished + data).split(b"\n")
        self._whole += [flush_line(line) + b"\n" for line in lines]
        self._unfinished, self._is_stale = rest, True
        if len(rest) > UNFINISHED_BYTES_MAX:
            self._unfinished = rest[-REDRAWN_BYTES:] if b"\r" in rest or b"\x08" in rest else b""
            self._whole += [] if self._unfinished else [rest + b"\n"]

    def print_line(self, line: bytes) -> None:
        """Add our line above the program's unfinished line. `line` ends with a newline."""
        self._whole.append(line)
        self._is_stale = True

    def show_status(self, text: str) -> None:
        """Set the status line; "" removes it."""
        self._is_stale |= text != self._status
        self._status = text

    def render_rows(self, width: int) -> bytes:
        """Return the bytes to write now to a terminal of `width` columns.

        They are empty if nothing has changed.
        """
        if not self._is_stale:
            return b""
        drawn = [fit_line(self._unfinished, width - 1)] if self._unfinished else []
        drawn += [self._status.encode(errors="replace")] if self._status else []
        data = self._erase() + b"".join(self._whole) + b"\n".join(drawn)
        self._whole, self._rows, self._is_stale = [], len(drawn), False
        return data

    def end_line(self) -> None:
        """End the unfinished line, because its writer is dead."""
        if self._unfinished:
            self._whole.insert(0, flush_line(self._unfinished) + b"\n")
            self._unfinished, self._is_stale = b"", True

    def finish(self) -> bytes:
        """Return the bytes to write at the end. They remove the live rows."""
        self.end_line()
        data = self._erase() + b"".join(self._whole)
        self._whole, self._status, self._rows = [], "", 0
        return data

    def _erase(self) -> bytes:
        if not self._rows:
            return b""
        return b"\r" + b"\x1b[A" * (self._rows - 1) + _ERASE_BELOW


def flush_line(line: bytes) -> bytes:
    """Return a finished line as a terminal would show it, without text that was overwritten."""
    line = line.removesuffix(b"\r")
    return line if _STYLE_ONLY.fullmatch(line) else _draw(_cells(line))


def fit_line(line: bytes, width: int) -> bytes:
    """Return the unfinished line as a terminal would show it, cut to `width` columns.

    If the line only grows, its end is kept. If it redraws itself, its beginning is kept.
    """
    cells = _cells(line.removesuffix(b"\r") if line.rstrip(b"\r") else line)
    is_redrawn = b"\r" in line or b"\x08" in line
    shown, room = [], width
    for style, char in cells if is_redrawn else reversed(cells):
        room -= _columns(char)
        if room < 0:
            break
        shown.append((style, char))
    return _draw(shown if is_redrawn else shown[::-1])


def _cells(line: bytes) -> list[tuple[str, str]]:
    """Return the style and the character of each column, after all carriage returns, backspaces and
    cursor movements.
    """
    text = line[-REDRAWN_BYTES:].decode(errors="replace") if b"\r" in line else line.decode(errors="replace")
    cells: list[tuple[str, str]] = []
    style, column, at = "", 0, 0
    while at < len(text):
        char = text[at]
        move = _MOVES.match(text, at) if char == "\x1b" else None
        if move is not None:
            style, column = _move(move, cells, style, column)
            at = move.end()
            continue
        at += 1
        if char == "\r":
            column = 0
        elif char == "\b":
            column = max(0, column - 1)
        elif char != "\x1b":
            cells += [("", " ")] * (column - len(cells))
            cells[column : column + 1] = [(style, " " if char == "\t" else char)]
            column += 1
    return cells


def _move(move: re.Match[str], cells: list[tuple[str, str]], style: str, column: int) -> tuple[str, int]:
    """Return the style and the column after an escape sequence, and erase what it erases.

    An unknown sequence, or one that leaves the line, does nothing.
    """
    private, parameters, kind = move.groups()
    number = int(parameters) if parameters.isdecimal() else 0
    if private:
        return style, column
    match kind:
        case "m":
            return ("" if number == 0 and ";" not in parameters else style + move[0]), column
        case "K" if number == 0:
            del cells[column:]
        case "K" if number == 2:
            cells.clear()
        case "G":
            return style, min(max(0, number - 1), COLUMN_MAX)
        case "C":
            return style, min(column + max(1, number), COLUMN_MAX)
        case "D":
            return style, max(0, column - max(1, number))
    return style, column


def _draw(cells: list[tuple[str, str]]) -> bytes:
    out, style = [], ""
    for wanted, char in cells:
        if wanted != style:
            out.append((_PLAIN if style else "") + wanted)
            style = wanted
        out.append(char)
    return ("".join(out) + (_PLAIN if style else "")).encode(errors="replace")


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1
