"""Parse and show durations, sizes and times for people.

Durations are written like `90`, `90s`, `5m`, `5 min`, `2h` or `1hour`, and sizes like `8GiB`.
"""

from __future__ import annotations

import datetime
import math
import re
from fractions import Fraction

_UNITS = (  # seconds, and their names
    (0.001, ("ms", "millisecond", "milliseconds")),
    (1.0, ("s", "sec", "secs", "second", "seconds")),
    (60.0, ("m", "min", "mins", "minute", "minutes")),
    (3600.0, ("h", "hr", "hrs", "hour", "hours")),
    (86400.0, ("d", "day", "days")),
)
_SECONDS = {word: seconds for seconds, words in _UNITS for word in words}
_DURATION = re.compile(
    rf"^\s*(\d+(?:\.\d+)?)\s*({'|'.join(sorted(_SECONDS, key=len, reverse=True))})?\s*$", re.IGNORECASE
)
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*$", re.IGNORECASE)
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_duration(text: str) -> float:
    """Returns the seconds in `text`; ValueError says how to write a duration."""
    match = _DURATION.match(text)
    if not match:
        raise ValueError(f"{text!r} is not a duration; write 90, 90s, 5m or 2h")
    seconds = float(match[1]) * _SECONDS[(match[2] or "s").lower()]
    if math.isinf(seconds):
        raise ValueError(f"{text!r} is too long a duration")
    return seconds


def parse_size(text: str) -> int:
    """Returns the bytes in `text`; ValueError says how to write a size."""
    match = _SIZE.match(text)
    if not match:
        raise ValueError(f"{text!r} is not a size; write 512MiB or 8GiB")
    return int(Fraction(match[1]) * _BYTES[(match[2] or "").lower()])  # a float would round values above 2**53


def show_duration(seconds: float) -> str:
    """Shows a duration to people: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def show_time(time_s: float) -> str:
    """Shows a Unix time to people, in this machine's time zone."""
    return datetime.datetime.fromtimestamp(time_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def show_size(size: float) -> str:
    """Shows a size to people: `12 B`, `3.4 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def show_count(number: int, noun: str) -> str:
    """Shows a number with its noun: `1 failure`, `2 failures`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
