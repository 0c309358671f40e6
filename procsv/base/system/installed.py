"""Directories of installed modules, as against the program's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SITE_NAMES = ("site-packages", "dist-packages")


def installed_directories() -> tuple[str, ...]:
    """The interpreter's library and its site directories, each with a separator at its end."""
    import site  # imported here: a trainer's start does not wait for them
    import sysconfig

    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [*site.getsitepackages(), site.getusersitepackages()]
    found += [path for path in sys.path if Path(path).name in SITE_NAMES]  # another environment's, say
    both = {form for path in found for form in (path, os.path.realpath(path))}
    return tuple(path.rstrip(os.sep) + os.sep for path in sorted(both))
