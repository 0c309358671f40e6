"""TensorFlow's start-up noise in a program's output: what its C++ libraries say at every import, on every machine.

Used where output is shown to people: the watchdog's echo and its crash reports.  The log files keep it.  Only lines are
listed here that nobody can act on; what tells of trouble (a GPU that is there and cannot be used) is shown.
"""

from __future__ import annotations

import re

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

    @property
    def holds(self) -> bool:
        """Whether a part of a line is held back."""
        return bool(self._held)

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
