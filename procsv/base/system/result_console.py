"""The console on which commands print their results.

Used by the commands.  A terminal has a width; a pipe or a file has none, so that nothing is folded or cut there.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_COLUMNS = 10_000


def make_console() -> Console:
    """Standard output, as wide as it is."""
    from rich.console import Console

    is_pipe = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=PIPE_COLUMNS if is_pipe else None)
