"""Types of option values: durations and ranges of them, sizes, limits by phase.

Used by the commands.  Each is a click type, so that a value from the command line and one from a TOML file pass the
same check.
"""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

import click

from procsv.base.units import parse_duration, parse_size
from procsv.ipc.messaging.launch_settings import HANG_LIMITS_S, Range

if TYPE_CHECKING:  # generic to the checker; in older releases of click it is not
    _DurationType = click.ParamType[float | str]
    _RangeType = click.ParamType[Range]
    _LimitsType = click.ParamType[dict[str, float]]
    _IntType = click.ParamType[int]
    _TextType = click.ParamType[str]
else:
    _DurationType = _RangeType = _LimitsType = _IntType = _TextType = click.ParamType


class Duration(_DurationType):
    """`90`, `90s`, `5m`, `2h`, as seconds; or one of `words`, as it is."""

    name = "duration"

    def __init__(self, *words: str, least_s: float = 0.0) -> None:
        self._words = words
        self._least_s = least_s

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        if isinstance(value, str) and value in self._words:
            return value
        try:
            seconds = float(value) if isinstance(value, int | float) else parse_duration(str(value))
        except ValueError as error:
            words = f", or one of: {', '.join(self._words)}" if self._words else ""
            self.fail(f"{error}{words}", param, ctx)
        if not math.isfinite(seconds):  # a TOML file can say so
            self.fail(f"{value} is not a duration; write 90, 90s, 5m or 2h", param, ctx)
        if seconds < self._least_s:
            self.fail(f"{value} is less than {self._least_s:g} s", param, ctx)
        return seconds


class Size(_IntType):
    """`8GiB`; bytes."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class CommandLine(_TextType):
    """`notify --to 'the team'`: split as a shell would; "" is none."""

    name = "command"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            shlex.split(str(value))
        except ValueError as error:
            self.fail(f"{value!r} cannot be split into words: {error}", param, ctx)
        return str(value)


class PhaseLimits(_LimitsType):
    """`import=10m,save=1h`: seconds by phase."""

    name = "limits"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, float]:
        if isinstance(value, dict):
            return value
        found = {}
        for part in filter(None, (part.strip() for part in str(value).split(","))):
            phase, _, text = part.partition("=")
            if phase not in HANG_LIMITS_S:
                self.fail(f"there is no phase {phase!r}; there are: {', '.join(HANG_LIMITS_S)}", param, ctx)
            try:
                found[phase] = parse_duration(text)
            except ValueError as error:
                self.fail(f"{part!r}: {error}", param, ctx)
        return found


class DurationRange(_RangeType):
    """`1s..60s`."""

    name = "range"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Range:
        if isinstance(value, Range):
            return value
        first, dots, last = str(value).partition("..")
        try:
            found = Range(parse_duration(first), parse_duration(last if dots else first))
        except ValueError:
            self.fail(f"{value!r} is not a range of durations; write 1s..60s", param, ctx)
        if found.least_s > found.most_s:
            self.fail(f"{value!r}: write the smaller duration first", param, ctx)
        return found
