"""Surroundings of a run under test, where they are to be other than the test's own: a network, a mount, a cgroup, fewer rights.

    python -m procsv.testing.template.within FILE FUNCTION ARG… -- COMMAND…

calls a function of a file with texts, and becomes COMMAND.  The function changes this process, and returns what it changes of the
environment, or None.  In a fork of the session's template host.py does the same, before that fork gets a template of its own.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping, Sequence

END = "--"


def enter(within: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Calls it, unless `within` is empty; the environment of what runs there.  Whatever it raises passes through."""
    if not within:
        return dict(environment)
    file, function, *args = within
    return {**environment, **(runpy.run_path(file)[function](*args) or {})}


if __name__ == "__main__":
    end = sys.argv.index(END)
    variables = enter(sys.argv[1:end], os.environ)
    os.execvpe(sys.argv[end + 1], sys.argv[end + 1 :], variables)
