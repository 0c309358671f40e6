"""Find the package that the program imports just now: TensorFlow's import takes many seconds, and people wait for it.

Used by trainer_heartbeat.py, five times a second while the program has no session.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from typing import TypeGuard

SITE = "-packages/"  # in the path of what is installed, by whatever way: site-packages, dist-packages


class ImportWatch:
    def __init__(self) -> None:
        self._count, self._found = 0, ""  # modules that there were; the first one that was half imported

    def look(self) -> str:
        """The installed package whose import is under way; "" if none is."""
        if not _is_begun(_spec(sys.modules.get(self._found))):
            count = len(sys.modules)
            self._found = _find() if count != self._count else ""
            self._count = count
        return self._found.partition(".")[0]


def _find() -> str:
    """The outermost: a module is entered when its import begins."""
    for name, module in list(sys.modules.items()):
        spec = _spec(module)
        if _is_begun(spec) and SITE in (spec.origin or "") and name.partition(".")[0] != "procsv":
            return name
    return ""


def _spec(module: object) -> ModuleSpec | None:
    """Past a module's own `__getattr__`, which may import what it stands for."""
    try:
        spec = object.__getattribute__(module, "__dict__").get("__spec__")
    except AttributeError:
        return None
    return spec if isinstance(spec, ModuleSpec) else None


def _is_begun(spec: ModuleSpec | None) -> TypeGuard[ModuleSpec]:
    return getattr(spec, "_initializing", False) is True
