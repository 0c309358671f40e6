"""Make text from outside safe for a terminal: show control characters instead of obeying them.

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

    def finish_output(self) -> bytes:
        """What is still held back, at the end of the output."""
        held, self._held = self._held, b""
        return _OUTPUT.sub(_show_control, held)


def _show_control(match: re.Match[bytes]) -> bytes:
    return match[1] or match[0].decode().encode("unicode_escape")


# -- TensorFlow's start-up noise: what its C++ libraries say at every import, on every machine --------------------------
# Left out where output is shown to people (the watchdog's echo, crash reports); the log files keep it.  Only lines that nobody can act on:
# what tells of trouble (a GPU that is there and cannot be used) is shown.
_PREFIX = rb"(?:[IWE]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] )"
_SOURCES = (
    rb"(?:port|util|onednn_util)\.cc:\d+\] oneDNN custom operations are on",
    rb"cudart_stub\.cc:\d+\] Could not find cuda drivers on your machine",
    rb"cpu_feature_guard\.cc:\d+\] This TensorFlow binary is optimized",
    rb"cuda_(?:dnn|fft|blas)\.cc:\d+\] Unable to register cu\w+ factory",
    rb"computation_placer\.cc:\d+\] computation placer already registered",
    rb"cuda_(?:driver|platform|executor)\.cc:\d+\] failed call to cuInit: .*(?:no CUDA-capable device|ERROR.{0,3}303)",
    rb"mlir_graph_optimization_pass\.cc:\d+\] MLIR V1 optimization pass is not enabled",
    rb"\S+\] TF-TRT Warning: Could not find TensorRT",
)
_NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler flags"
    rb"|" + _PREFIX + rb"(?:\S*/)?(?:" + rb"|".join(_SOURCES) + rb")"
)
# The beginning of a line that may become one of those.
_LITERALS = (b"WARNING: All log messages", b"To enable the following")
_MAYBE = re.compile(rb"[IWE](?:\d{0,3}|\d{4}(?: (?:\d.*)?)?)|\d{1,4}|\d{4}-(?:\d.*)?")

HELD_BYTES_MAX = 2048  # of a line that is not whole; a longer one is none of these


def is_startup_noise(line: bytes) -> bool:
    """Whether `line` is one that TensorFlow prints at its start, whatever the program."""
    return _NOISE.match(line) is not None


class NoiseFilter:
    """A program's output without that noise.  A line that may become noise is held back until it is whole, or is asked for."""

    def __init__(self) -> None:
        self._held = b""
        self._at_start = True  # of a line

    def pass_on(self, data: bytes) -> bytes:
        """What of `data`, and of what was held back before, may be shown now."""
        data, self._held = self._held + data, b""
        shown = []
        for line in _split_at_newlines(data):
            is_whole = line.endswith(b"\n")
            if self._at_start and is_whole and is_startup_noise(line):
                continue
            if self._at_start and not is_whole and _may_become_noise(line):
                self._held = line
                break
            shown.append(line)
            self._at_start = is_whole
        return b"".join(shown)

    def release(self) -> bytes:
        """What is held back: nothing has followed, so it is no line of a library's."""
        held, self._held = self._held, b""
        if held:
            self._at_start = False
        return b"" if is_startup_noise(held) else held


def _split_at_newlines(data: bytes) -> list[bytes]:
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _may_become_noise(start: bytes) -> bool:
    if len(start) > HELD_BYTES_MAX:
        return False
    return any(literal.startswith(start[: len(literal)]) for literal in _LITERALS) or bool(_MAYBE.fullmatch(start))
