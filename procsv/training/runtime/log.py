"""The log of a training process.

The graph side makes it a child of TensorFlow's logger: the program's verbosity and handlers hold for it, too.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator

log = logging.getLogger("procsv")

_PREFIX = "procsv: "
_SHOWS_NAME = re.compile(r"%\(name\)|\{name\b|\$\{?name\b")  # in the three styles of formats
_said: set[tuple[str, int]] = set()  # by which process


def say(text: str) -> None:
    """Prints a line for the user, whatever the program's log shows."""
    print(f"procsv: {text}", file=sys.stderr, flush=True)


def say_once(text: str) -> None:
    """Says so, once a process: what a standby says nobody reads, and its forks say it anew."""
    if (text, os.getpid()) not in _said:
        _said.add((text, os.getpid()))
        say(text)


def _drop_prefix(record: logging.LogRecord) -> bool:
    """Drops the name that the text begins with, where the format of a handler shows that of the logger."""
    if isinstance(record.msg, str) and any(map(_shows_name, _handlers())):
        record.msg = record.msg.removeprefix(_PREFIX)
    return True


def _handlers() -> Iterator[logging.Handler]:
    logger: logging.Logger | None = log
    while logger is not None:
        yield from logger.handlers
        logger = logger.parent if logger.propagate else None


def _shows_name(handler: logging.Handler) -> bool:
    return handler.formatter is not None and bool(_SHOWS_NAME.search(handler.formatter._fmt or ""))


log.addFilter(_drop_prefix)
