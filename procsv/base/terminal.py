"""Make text from outside safe for a terminal: show control characters instead of obeying them.

It is used wherever a path, an argument, an exception or a program's output reaches a person.  Files
and pipes get the bytes unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

COLUMN_GAP, COLUMN_MIN = 2, 6

# C0 except tab and newline, DEL, C1, characters that change the writing direction, and surrogates
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

# Progress bars and colours consist of these: return, backspace, colours, cursor moves, erasing, hiding the cursor.
_HARMLESS = rb"[\r\x08]|\x1b\[[0-9;]*[mABCDGJK]|\x1b\[\?25[hl]"
_OUTPUT = re.compile(rb"(" + _HARMLESS + rb")|[\x00-\x07\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
_UNFINISHED = re.compile(rb"(?:\x1b(?:\[\??[0-9;]{0,20})?|\xc2)\Z")


def printable(text: str) -> str:
    """Returns `text` with its control characters written out.

    For example, the character that starts an escape sequence becomes \\x1b.
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def as_markup(text: str) -> str:
    """Escapes `text` for rich's markup, so that it is printed literally, brackets included."""
    from rich.markup import escape

    return escape(printable(text))


def make_table(columns: Iterable[str], right: Container[str] = ()) -> Table:
    """Makes a table without lines, with the columns in `right` right-aligned.

    Each row is one line.  If the terminal is too narrow, the widest columns end in "…".
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
    """Shrinks column widths to fit into `room`, the widest first and none below COLUMN_MIN."""
    fitted = list(widths)
    while sum(fitted) > room and max(fitted) > COLUMN_MIN:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted


class OutputFilter:
    """Filters a program's output for a terminal.

    It passes colours and progress bars, and writes out all other control characters.
    """

    def __init__(self) -> None:
        self._held = b""  # an incomplete sequence

    def pass_on(self, data: bytes) -> bytes:
        """Returns the output that may be written now, including output held back before."""
        data = self._held + data
        cut = _UNFINISHED.search(data)
        self._held = cut[0] if cut is not None else b""
        return _OUTPUT.sub(_show_control, data[: len(data) - len(self._held)])

    def finish_output(self) -> bytes:
        """Returns the output that is still held back, at the end of the output."""
        held, self._held = self._held, b""
        return _OUTPUT.sub(_show_control, held)


def _show_control(match: re.Match[bytes]) -> bytes:
    return match[1] or match[0].decode().encode("unicode_escape")


# -- TensorFlow's start-up noise: lines that its C++ libraries print at every import, on every machine -----------------
# Output for people (the watchdog's echo, crash reports) leaves them out; the log files keep them.  Only lines that
# nobody can act on are listed; a real problem, such as a GPU that cannot be used, is shown.
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
# The beginnings of lines that may become noise.
_LITERALS = (b"WARNING: All log messages", b"To enable the following")
_MAYBE = re.compile(rb"[IWE](?:\d{0,3}|\d{4}(?: (?:\d.*)?)?)|\d{1,4}|\d{4}-(?:\d.*)?")

HELD_BYTES_MAX = 2048  # of an incomplete line; noise is never longer


def is_startup_noise(line: bytes) -> bool:
    """Whether TensorFlow prints `line` at its start, whatever the program."""
    return _NOISE.match(line) is not None


class NoiseFilter:
    """Removes TensorFlow's start-up noise from a program's output.

    A line that may become noise is held back until it is complete, or until `release`.
    """

    def __init__(self) -> None:
        self._held = b""
        self._at_start = True  # of a line

    def pass_on(self, data: bytes) -> bytes:
        """Returns the output that may be shown now, including output held back before."""
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
        """Returns the output that is held back; nothing if it is noise.

        A library writes its line at once.  So if the rest of a line has not come yet, the program
        itself has written the beginning.
        """
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
