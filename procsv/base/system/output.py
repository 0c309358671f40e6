"""Standard output and error that neither a full disk nor a stale handle can break.

Called first by every process whose output goes to a log file in the logdir (trainer and services).  A log that is stale is opened anew; a write
that the disk refuses is dropped and counted: what a program prints is not worth its training.  Lines appear as they are
printed, not when a buffer is full, so that `procsv logs -f` and the terminal show what goes on.
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
                return super().write(data)  # type: ignore[arg-type]  # a buffer: typeshed has no name for it that runs
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
    """Ends this process at once, with nothing left to do: taking an interpreter down takes a tenth of a second."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def keep_output_going() -> None:
    """Replaces sys.stdout and sys.stderr of this process; whatever was printed before is written out."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        if old is None:  # closed by whoever started us
            continue
        old.flush()
        raw = LogOutput(fd, "w", closefd=False)
        raw.name = f"<{name}>"  # as the interpreter names them
        new = io.TextIOWrapper(io.BufferedWriter(raw), encoding=old.encoding, errors=old.errors, line_buffering=True)
        new.mode = "w"  # type: ignore[misc]  # typeshed has it read-only; the interpreter sets it
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def make_console() -> Console:
    """For what a command prints: as wide as the terminal.  A pipe or a file has no width, so that nothing is folded or cut there."""
    from rich.console import Console

    is_pipe = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=PIPE_COLUMNS if is_pipe else None)
