"""Protect standard output and error from a full disk and from a stale descriptor (stale.py).

The trainer and the services, whose output goes to a log file in the logdir, call
`keep_output_going` first.  If the descriptor of the log is stale, the log is reopened.  If the disk
refuses a write, the write is dropped and counted, because training is worth more than output.
Lines appear as they are printed, not when a buffer is full, so `procsv logs -f` and the terminal
are up to date.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from procsv.base.system import stale

if TYPE_CHECKING:
    from rich.console import Console

REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE}
PIPE_COLUMNS = 10_000


class LogOutput(io.FileIO):
    """A descriptor whose refused writes count as written."""

    refused_bytes = 0

    def write(self, data: object) -> int:
        try:
            try:
                return super().write(data)  # type: ignore[arg-type]  # a buffer, for which typeshed has no runtime name
            except OSError as error:
                if not (stale.is_stale(error) and stale.reopen(self.fileno())):
                    raise
                return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
            size = memoryview(data).nbytes  # type: ignore[arg-type]
            self.refused_bytes += size
            return size


def leave(code: int) -> NoReturn:
    """Ends this process immediately.

    A normal exit of the interpreter takes a tenth of a second.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def keep_output_going() -> None:
    """Replaces this process's sys.stdout and sys.stderr, after flushing them."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        if old is None:  # our parent process has closed it
            continue
        old.flush()
        raw = LogOutput(fd, "w", closefd=False)
        raw.name = f"<{name}>"  # like the interpreter's own
        new = io.TextIOWrapper(io.BufferedWriter(raw), encoding=old.encoding, errors=old.errors, line_buffering=True)
        new.mode = "w"  # type: ignore[misc]  # read-only in typeshed, but the interpreter sets it
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def make_console() -> Console:
    """Makes a console for a command's output, as wide as the terminal.

    For a pipe or a file it is very wide, so that nothing is folded or cut.
    """
    from rich.console import Console

    is_pipe = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=PIPE_COLUMNS if is_pipe else None)
