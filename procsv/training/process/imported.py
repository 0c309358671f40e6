"""Modules that this process has imported: installed ones, and the program's own.

Each module is examined once.  A fork inherits the earlier results and only examines later imports:
touching thousands of modules there would copy their memory, which takes 30 ms for TensorFlow's.
import_record.py uses this; fork.py examines modules before there are forks.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from procsv.base.run.loaded import File, read_file

MAIN = "__main__"
GENERATED = "__autograph_generated_file"  # the name of modules that TensorFlow writes for one process
SITE_NAMES = ("site-packages", "dist-packages")
NOT_OURS_TO_IMPORT = frozenset({MAIN, "__mp_main__", "site", "sitecustomize", "usercustomize"})

Modules = dict[str, ModuleType]


class Imported:
    """The modules of one interpreter."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._installed: dict[str, None] = {}  # names, in the order in which their imports began
        self._tops: dict[str, None] = {}  # their top-level names
        self._own: dict[str, None] = {}  # top-level names of the program's own
        self._files: dict[str, None] = {}  # files outside of all installation directories
        self._versions: dict[str, File] = {}  # of the program's own files, as first read
        self._newest = ""  # the newest examined module

    def note_modules(self) -> None:
        """Examines the modules that were imported since the last call."""
        new = self._since()
        directories = installed_directories() if new else ()
        for name in reversed(new):
            module = self._modules.get(name)
            self._sort(name, spec_of(module), directories)
            path = _file_of(module)
            if path and not path.startswith(directories) and _may_be_own(name):
                self._files[path] = None
        self._newest = new[0] if new else self._newest

    def _since(self) -> list[str]:
        """Names of modules since the last call, newest first."""

        def is_new(name: str) -> bool:
            return name != self._newest

        try:
            return [*itertools.takewhile(is_new, reversed(self._modules))]
        except RuntimeError:  # another thread is importing
            return [*itertools.takewhile(is_new, reversed(self._modules.copy()))]

    def _sort(self, name: str, spec: ModuleSpec | None, directories: tuple[str, ...]) -> None:
        if name in NOT_OURS_TO_IMPORT or spec is None or spec.name != name:
            return  # created by a running library, or an alias: it comes with its origin
        top, paths = name.partition(".")[0], _paths(spec)
        if top == "procsv":
            if not name.startswith("procsv.examples"):
                self._installed[name] = self._tops[top] = None
        elif any(not place.startswith(directories) for place in paths):
            self._own[top] = None
        elif paths or spec.origin in ("built-in", "frozen"):
            self._installed[name] = self._tops[top] = None

    def names(self, program: str) -> tuple[list[str], list[str]]:
        """Returns the installed modules, and the top-level names of the program's own.

        `program` is the top-level name of the target's module, or "".
        """
        installed = [name for name in self._installed if name in self._modules]
        own, tops = dict(self._own), set(self._tops)
        if program in tops and program != "procsv":
            installed = [name for name in installed if not _is_in(name, program)]
            own[program] = None
            tops.remove(program)
        return installed, [top for top in own if top not in tops]  # a namespace may be both

    def own_files(self, program: str) -> dict[str, File]:
        """The program's own module files, as they were when this process first listed them."""
        paths = {**self._files, _file_of(self._modules.get(MAIN)): None}
        if program in self._tops:
            names = [name for name in [*self._modules] if _is_in(name, program) and _may_be_own(name)]
            paths.update((_file_of(self._modules.get(name)), None) for name in names)
        for path in filter(None, paths):
            self.note_file(path)
        return dict(self._versions)

    def note_file(self, path: str) -> None:
        """Reads a file of the program, unless it was read before: its first version is in use."""
        path = os.path.abspath(path)
        if path not in self._versions and (file := read_file(path)) is not None:
            self._versions[path] = file

    def forget_changed(self, paths: Sequence[str]) -> None:
        """Forgets each of `paths` that is not a module and has changed since it was read."""
        imported = {os.path.abspath(path) for path in (*self._files, _file_of(self._modules.get(MAIN))) if path}
        for path in set(paths) - imported:
            before, now = self._versions.get(path), read_file(path)
            if before is not None and not (now is not None and now.is_as(before)):
                del self._versions[path]


def _may_be_own(name: str) -> bool:
    """Whether the module may be the program's own.

    Procsv's modules, those that TensorFlow generates, and second names of the main module are not.
    """
    is_procsv = _is_in(name, "procsv") and not _is_in(name, "procsv.examples")
    return not is_procsv and not name.startswith(GENERATED) and name not in NOT_OURS_TO_IMPORT


def _is_in(name: str, top: str) -> bool:
    return name == top or name.startswith(f"{top}.")


def spec_of(module: ModuleType | None) -> ModuleSpec | None:
    """How the module was found; None if a library created it."""
    if not isinstance(module, ModuleType):
        return None
    # Not by getattr, which would load a lazy module.
    spec = object.__getattribute__(module, "__dict__").get("__spec__")
    return spec if isinstance(spec, ModuleSpec) else None


def _file_of(module: ModuleType | None) -> str:
    """Its `__file__`, or ""."""
    path = object.__getattribute__(module, "__dict__").get("__file__") if isinstance(module, ModuleType) else None
    return path if isinstance(path, str) else ""


def _paths(spec: ModuleSpec) -> list[str]:
    """A module's file, or a namespace's directories; empty if a library created the module."""
    if spec.has_location and spec.origin:
        return [spec.origin]
    return list(spec.submodule_search_locations or ())


def installed_directories() -> tuple[str, ...]:
    """The interpreter's library and site directories, each with a final separator."""
    import site  # here, so that a trainer's start does not wait for them
    import sysconfig

    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [*site.getsitepackages(), site.getusersitepackages()]
    found += [path for path in sys.path if Path(path).name in SITE_NAMES]  # of another environment, for example
    both = {form for path in found for form in (path, os.path.realpath(path))}
    return tuple(path.rstrip(os.sep) + os.sep for path in sorted(both))


IMPORTED = Imported(sys.modules)
