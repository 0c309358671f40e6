"""Record of a trainer's imports, for the standby that imports the same beforehand.

Written by the trainer once it trains, read by the standby (standby.py) and by the next launch (procsv/base/run/loaded.py).  It lists only what is installed: the interpreter's
library, the contents of its site directories, and procsv; never the program's own modules, whose import is part of the
program.  It names the program's own top-level modules apart: a standby must not let an installed library find another
module by such a name.

Libraries read environment variables when they are imported, so the environment counts as it was when TensorFlow's import
began; the standby imports in that environment, then restores its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from procsv.base.run.loaded import File, Loaded, file_now, write_loaded
from procsv.base.run.paths import RunPaths
from procsv.base.system.installed import installed_directories

NOT_OURS_TO_IMPORT = frozenset({"__main__", "__mp_main__", "site", "sitecustomize", "usercustomize"})

KEEP_S = 1.0  # between two looks whether the record is there


class ImportRecord:
    """What this process has imported by now, kept in a file for as long as it lives."""

    def __init__(
        self, paths: RunPaths, environment: dict[str, str | None], program: str, command: tuple[str, ...] = ()
    ) -> None:
        """`program`: top-level name of the target's module, or ""."""
        loaded = dict(sys.modules)
        modules, own = sort_modules(loaded, program)
        self._path, self._due_s, self._is_written = paths.loaded, 0.0, False
        self._loaded = Loaded(environment, tuple(modules), tuple(own), command, own_files(loaded, program))
        if command and paths.own_home is None:
            with contextlib.suppress(OSError):  # then the next launch begins without
                write_loaded(paths.imports, self._loaded)

    def keep(self, now_s: float) -> None:
        """Writes it, unless it is there; where there is no room or no directory, some time later."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + KEEP_S
        with contextlib.suppress(OSError):
            if not (self._is_written and self._path.exists()):
                write_loaded(self._path, self._loaded)
                self._is_written = True


# -- modules -------------------------------------------------------------------------------------------------
def sort_modules(modules: Mapping[str, ModuleType | None], program: str) -> tuple[list[str], list[str]]:
    """The installed modules of `modules`, and the top-level names of the program's own."""
    directories = installed_directories()
    installed, own = [], dict[str, None]()
    for name, module in modules.items():
        spec = spec_of(module)
        if name in NOT_OURS_TO_IMPORT or spec is None or spec.name != name:
            continue  # made by a library as it ran, or another's alias: it comes along
        top = name.partition(".")[0]
        if top == "procsv":
            if not name.startswith("procsv.examples"):
                installed.append(name)
            continue
        paths = _paths(spec)
        if top == program or any(not place.startswith(directories) for place in paths):
            own[top] = None
        elif paths or spec.origin in ("built-in", "frozen"):
            installed.append(name)
    tops = {name.partition(".")[0] for name in installed}
    return installed, [top for top in own if top not in tops]  # a namespace may be both


def own_files(modules: Mapping[str, ModuleType | None], program: str) -> dict[str, File]:
    """The files of the program's own modules, as they are now."""
    directories, found = installed_directories(), dict[str, File]()
    for name, module in modules.items():
        path = object.__getattribute__(module, "__dict__").get("__file__") if isinstance(module, ModuleType) else None
        if not isinstance(path, str):
            continue
        is_own = name == "__main__" or name.partition(".")[0] == program or not path.startswith(directories)
        if is_own and (file := file_now(path)) is not None:
            found[os.path.abspath(path)] = file
    return found


def spec_of(module: ModuleType | None) -> ModuleSpec | None:
    """How the module was found; None of one that a library has made."""
    if not isinstance(module, ModuleType):
        return None
    spec = object.__getattribute__(module, "__dict__").get("__spec__")  # not getattr: one that loads late would load
    return spec if isinstance(spec, ModuleSpec) else None


def _paths(spec: ModuleSpec) -> list[str]:
    """A module's file, or the directories of a namespace; nothing for a module that a library has made."""
    if spec.has_location and spec.origin:
        return [spec.origin]
    return list(spec.submodule_search_locations or ())


# -- the environment -----------------------------------------------------------------------------------------
class EnvironmentRecorder:
    """Keeps what the program has changed of its environment by the time it imports TensorFlow.

    A finder that finds nothing and is gone after the first `import tensorflow`.
    """

    def __init__(self) -> None:
        self.changes: dict[str, str | None] = {}  # None: removed
        self._before = dict(os.environ)

    def start_recording(self) -> None:
        if "tensorflow" not in sys.modules:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "tensorflow":
            sys.meta_path.remove(self)
            names = {**self._before, **os.environ}
            self.changes = {n: os.environ.get(n) for n in names if os.environ.get(n) != self._before.get(n)}
        return None
