"""Modules that a fork has from before: left alone when its interpreter ends.

An interpreter takes down each module at its end.  In a fork that copies most of what it shares with the process that it was made of,
page by page: a quarter of a second for TensorFlow, after all of the program's own work, in which a trainer that has failed cannot be
started again.  The program's modules, and what it has imported itself, are taken down as ever.  Used by fork.py.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from types import ModuleType

ALWAYS = ("sys", "builtins", "__main__")  # are taken down: the first two otherwise than modules are

_modules: dict[str, ModuleType] = {}
_noted_by = 0  # pid


def note_imported() -> None:
    """What is imported now is what forks of this process have from it."""
    global _noted_by
    _noted_by = os.getpid()
    _modules.clear()
    _modules.update((name, module) for name, module in sys.modules.items() if name not in ALWAYS)


def _leave_alone() -> None:
    if os.getpid() == _noted_by or not _modules:
        return
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_modules))  # nobody is the last who knows of it
    rest = {name: module for name, module in sys.modules.items() if module is not _modules.get(name)}
    sys.setswitchinterval(1000.0)  # s: no thread finds half of them
    sys.modules.clear()
    sys.modules.update(rest)


atexit.register(_leave_alone)  # before most others, which are called before it then, and may import
