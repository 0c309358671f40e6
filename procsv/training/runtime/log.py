"""The log of a training process.

The package procsv/training/graph makes it a child of TensorFlow's logger, so the program's
verbosity and handlers apply.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator


class _Log(logging.Logger):
    """A logger that never raises an error of its handlers, which are the program's.

    Such an error would end a step, or the thread that talks to the run.
    """

    def handle(self, record: logging.LogRecord) -> None:
        """Prints the message if a handler fails, as on a closed standard error."""
        try:
            super().handle(record)
        except Exception:  # noqa: BLE001  whatever the program's own handlers raise
            say(record.getMessage().removeprefix(_PREFIX))


log = logging.getLogger("procsv")
log.__class__ = _Log

_PREFIX = "procsv: "
_SHOWS_NAME = re.compile(r"%\(name\)|\{name\b|\$\{?name\b")  # in the three format styles
_said: set[tuple[str, int]] = set()  # with the process that printed it


def say(text: str) -> None:
    """Prints a line for the user, no matter what the program's log shows.

    The program may have closed or replaced its standard error.  If printing fails, the line goes to
    the descriptor: an error here would end the program, or the thread that talks to its run.
    """
    try:
        print(f"procsv: {text}", file=sys.stderr)
    except Exception:  # noqa: BLE001  whatever the program's own stream raises
        with contextlib.suppress(OSError):
            os.write(2, f"procsv: {text}\n".encode(errors="replace"))
    flush_output()


def flush_output() -> None:
    """Flushes standard output and error, if the program has left them in order."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def say_once(text: str) -> None:
    """Prints a line once per process.

    A fork repeats the lines that its standby has printed, because nobody reads the standby's log.
    """
    if (text, os.getpid()) not in _said:
        _said.add((text, os.getpid()))
        say(text)


@contextlib.contextmanager
def surviving_errors() -> Iterator[None]:
    """Prints an exception of the block, once, instead of raising it.

    For calls that may run code of the program, on a thread that must not end.
    """
    try:
        yield
    except Exception:  # noqa: BLE001  whatever the program's own code raises
        say_once(f"an error that training survives:\n{traceback.format_exc()}")


def _drop_prefix(record: logging.LogRecord) -> bool:
    """Drops the text's "procsv: " prefix if a handler's format shows the logger's name."""
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
