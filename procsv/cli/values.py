"""Define the types of option values, such as durations, sizes, ports and command lines.

Used by the commands. Each is a click type, so values from the command line and from a TOML file
pass the same check.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from procsv.base.units import parse_duration, parse_size
from procsv.ipc.messaging.launch_settings import HANG_LIMITS_S, Range

if TYPE_CHECKING:  # only newer releases of click have a generic ParamType; mypy needs it
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType


LEAST_SIZE = 4096  # bytes; a smaller number is refused, because the user has probably forgotten the unit


class Duration(_ParamType):
    """A duration such as `90`, `90s`, `5m` or `2h`, in seconds; or one of `words`, unchanged."""

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
        if not math.isfinite(seconds):  # TOML can express inf and nan
            self.fail(f"{value} is not a duration; write 90, 90s, 5m or 2h", param, ctx)
        if seconds < self._least_s:
            self.fail(f"{value} is less than {self._least_s:g} s", param, ctx)
        return seconds


class Parsed(_ParamType):
    """A value that `parse` converts or checks.

    If `parse` raises ValueError, the error's text becomes the message for the user.
    """

    def __init__(self, name: str, parse: Callable[[Any], object]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _parse_size(value: int | str) -> int:
    size = value if isinstance(value, int) else parse_size(str(value))
    if 0 < size < LEAST_SIZE:
        raise ValueError(f"{value} is {size} bytes; write a unit, as in {str(value).strip('bB ')}GiB")
    return size


def _parse_command(value: object) -> str:
    try:
        shlex.split(str(value))
    except ValueError as error:
        raise ValueError(f"{value!r} cannot be split into words: {error}") from error
    return str(value)


def _parse_port(value: object) -> str:
    if value == "":
        return ""
    host, _, port = str(value).rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"{value!r} is not a port; write 9400, or 0.0.0.0:9400 for other machines")
    if find_spec("prometheus_client") is None:
        raise ValueError("it needs prometheus-client: pip install 'procsv[metrics]'")
    return f"{host or '127.0.0.1'}:{port}"


def _parse_urls(value: object) -> str:
    if value == "":
        return ""
    if find_spec("apprise") is None:
        raise ValueError("it needs Apprise: pip install 'procsv[notify]'")
    from apprise import Apprise

    for url in filter(None, re.split(r"[\s,]+(?=[a-z0-9]+://)", str(value).strip())):
        if not Apprise().add(url):
            raise ValueError(f"Apprise knows no service {url.partition('://')[0]!r}, or it lacks a part of its URL")
    return str(value)


def _parse_limits(value: dict[str, float] | str) -> dict[str, float]:
    if isinstance(value, dict):
        return value
    found = {}
    for part in filter(None, (part.strip() for part in str(value).split(","))):
        phase, _, text = part.partition("=")
        if phase not in HANG_LIMITS_S:
            raise ValueError(f"there is no phase {phase!r}; there are: {', '.join(HANG_LIMITS_S)}")
        try:
            found[phase] = parse_duration(text)
        except ValueError as error:
            raise ValueError(f"{part!r}: {error}") from error
    return found


def _parse_range(value: Range | str) -> Range:
    if isinstance(value, Range):
        return value
    first, dots, last = str(value).partition("..")
    try:
        found = Range(parse_duration(first), parse_duration(last if dots else first))
    except ValueError as error:
        raise ValueError(f"{value!r} is not a range of durations; write 1s..60s") from error
    if found.least_s > found.most_s:
        raise ValueError(f"{value!r}: write the smaller duration first")
    return found


SIZE = Parsed("size", _parse_size)  # 8GiB: bytes
COMMAND_LINE = Parsed("command", _parse_command)  # notify --to 'the team': a text that shlex can split; "": none
NOTIFY = Parsed("URL", _parse_urls)  # slack://…, mailto://…
PORT = Parsed("port", _parse_port)  # 9400, or 0.0.0.0:9400
PHASE_LIMITS = Parsed("limits", _parse_limits)  # import=10m,save=1h: seconds per phase
DURATION_RANGE = Parsed("range", _parse_range)  # 1s..60s
