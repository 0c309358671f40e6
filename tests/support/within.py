"""Change the surroundings of a run under test: its network, mounts, cgroup or rights.

    python -P within.py FILE FUNCTION ARG… -- COMMAND…

calls FUNCTION of FILE with the arguments and then executes COMMAND. The function changes this
process and returns its changes to the environment, or None.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

END = "--"


def go_within(within: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` within. `within` is FILE, FUNCTION and its
    arguments, or empty.
    """
    return [*((sys.executable, "-P", __file__, *within, END) if within else ()), *command]


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))
    end = sys.argv.index(END)
    file, function, *args = sys.argv[1:end]
    told = runpy.run_path(file)[function](*args) or {}
    os.execvpe(sys.argv[end + 1], sys.argv[end + 1 :], {**os.environ, **told})
