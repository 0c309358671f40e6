"""First imports of a program, before it does anything else, as its source says.

Read by the watchdog at a launch, so that the standby can be made before the first trainer, and TensorFlow is imported once for
all of them.  Nothing is executed.  Followed are the program's imports, and those of its own modules, up to the first statement
that could change what an import finds: anything but an import, a plain definition, a constant, or a word for the environment.  What
comes after that, the trainer imports itself.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from procsv.base.run.loaded import Loaded
from procsv.base.system.installed import installed_directories
from procsv.base.system.target import Target, find_spec_in

HEAVY = frozenset({"tensorflow", "keras"})  # what is worth a standby: it takes seconds to import
SOURCE_BYTES_MAX = 2**20
SOURCES_MAX = 200  # of the program's own files; what more of them import, the trainer does
ENTRIES_MAX = 5000  # of the program's directory
_MODULE_SUFFIXES = (".py", ".so", ".pyc")


def first_imports(target: Target, cwd: Path) -> Loaded:
    """What a standby can import of `target` before its first trainer; empty if nothing heavy comes first."""
    home = target.home(cwd)
    own = None if os.environ.get("PYTHONSAFEPATH") else _names_in(home)
    if own is None:
        return Loaded()
    reader = _Reader([home, *sys.path], target.module.partition(".")[0])
    reader.read_program(target)
    if not HEAVY & {name.partition(".")[0] for name in reader.modules}:
        return Loaded()
    return Loaded(reader.environment, tuple(reader.modules), tuple(own - {"procsv"}))


def _names_in(directory: str) -> set[str] | None:
    """The modules that a program in `directory` finds there first; None if they are too many, or cannot be seen."""
    found = set[str]()
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number >= ENTRIES_MAX:
                    return None
                name = entry.name.partition(".")[0]
                if entry.name.endswith(_MODULE_SUFFIXES) or os.path.isfile(f"{entry.path}/__init__.py"):  # noqa: PTH113
                    found.add(name)
    except OSError:
        return None
    return found


class _Unknown(Exception):
    """From here on nobody knows without running the program."""


class _Reader:
    """Goes through a program's first statements, as the interpreter would."""

    def __init__(self, search: list[str], program: str) -> None:
        """`program`: top-level name of the target's module, or ""."""
        self.modules: dict[str, None] = {}  # installed ones, in the order in which they are imported
        self.environment: dict[str, str | None] = {}  # as the program sets it before
        self._search, self._program = search, program
        self._directories = installed_directories()
        self._met = set[str]()
        self._sources = 0

    def read_program(self, target: Target) -> None:
        try:
            match target.kind:
                case "path":
                    self._read(Path(target.path), "__main__", "")
                case "function":
                    self._follow(target.module)
                case "module":
                    parent = target.module.rpartition(".")[0]
                    if parent:
                        self._follow(parent)
                    self._read_main(target.module, parent)
        except _Unknown:
            pass  # what was found until then is so

    def _read_main(self, name: str, parent: str) -> None:
        spec = self._find(name)
        if spec is not None and spec.submodule_search_locations is not None:
            self._follow(name)
            spec, parent = self._find(f"{name}.__main__"), name
        if spec is None or spec.origin is None:
            raise _Unknown
        self._read(Path(spec.origin), "__main__", parent)

    # -- modules -------------------------------------------------------------------------------------------
    def _find(self, name: str) -> ModuleSpec | None:
        """Its spec; None if it is not there, or if a package makes it as it is imported."""
        where: Sequence[str] = self._search
        spec = None
        known = ""
        for part in name.split("."):
            known = f"{known}.{part}" if known else part
            spec = find_spec_in(known, part, where, is_top=known == part)
            if spec is None:
                return None
            where = list(spec.submodule_search_locations or ())
        return spec

    def _follow(self, name: str) -> None:
        """An import of that module, which begins with the packages that it is in."""
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            known = ".".join(parts[:count])
            if known in self._met:
                continue
            spec = self._find(known)
            if spec is None:
                if count > 1 and parts[0] in self.modules:
                    return  # an installed package makes it
                raise _Unknown
            self._met.add(known)
            self._enter(known, spec)

    def _enter(self, name: str, spec: ModuleSpec) -> None:
        places = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or ())
        if self._is_installed(name, places):
            self.modules[name] = None
        elif spec.origin and spec.has_location:
            package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
            self._read(Path(spec.origin), name, package)

    def _is_installed(self, name: str, places: Iterable[str]) -> bool:
        top = name.partition(".")[0]
        if top == "procsv":
            return not name.startswith("procsv.examples")
        return top != self._program and all(place.startswith(self._directories) for place in places)

    # -- statements ----------------------------------------------------------------------------------------
    def _read(self, path: Path, name: str, package: str) -> None:
        self._sources += 1
        if path.suffix != ".py" or self._sources > SOURCES_MAX:
            raise _Unknown
        try:
            if path.stat().st_size > SOURCE_BYTES_MAX:
                raise _Unknown
            statements = ast.parse(path.read_bytes()).body
        except (OSError, SyntaxError, ValueError, RecursionError):
            raise _Unknown from None
        for statement in statements:
            self._take(statement, name, package)

    def _take(self, statement: ast.stmt, name: str, package: str) -> None:
        match statement:
            case ast.Expr(value=ast.Constant()) | ast.ImportFrom(module="__future__"):
                pass
            case ast.Import(names=names):
                for alias in names:
                    self._follow(alias.name)
            case ast.ImportFrom(module=module, names=names, level=level):
                self._take_from(_resolve(module or "", level, package), names)
            case ast.Assign(targets=[ast.Name()], value=value) if _is_constant(value):
                pass
            case ast.Assign(targets=[ast.Subscript(value=where, slice=key)], value=value) if _is_environment(where):
                self._set_environment(key, value)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=where, attr="setdefault"), args=[key, value])) if (
                _is_environment(where)
            ):
                self._set_environment(key, value, is_default=True)
            case ast.FunctionDef(decorator_list=[], args=args) | ast.AsyncFunctionDef(decorator_list=[], args=args):
                if not all(default is None or _is_constant(default) for default in (*args.defaults, *args.kw_defaults)):
                    raise _Unknown
            case ast.If(test=test, orelse=[]) if _is_never(test, name):
                pass
            case _:
                raise _Unknown

    def _take_from(self, module: str, names: list[ast.alias]) -> None:
        self._follow(module)
        for alias in names:
            member = f"{module}.{alias.name}"
            if alias.name != "*" and self._find(member) is not None:
                self._follow(member)

    def _set_environment(self, key: ast.expr, value: ast.expr, is_default: bool = False) -> None:
        """What a library reads as it is imported; of no use for those that are imported already."""
        if HEAVY & {name.partition(".")[0] for name in self.modules}:
            raise _Unknown
        match key, value:
            case ast.Constant(value=str(name)), ast.Constant(value=str(text)):
                if not (is_default and (name in os.environ or name in self.environment)):
                    self.environment[name] = text
            case _:
                raise _Unknown


def _resolve(module: str, level: int, package: str) -> str:
    """The full name of what a `from` import names."""
    if not level:
        return module
    parts = package.split(".")
    if not package or level > len(parts):
        raise _Unknown
    return ".".join([*parts[: len(parts) - level + 1], *([module] if module else [])])


def _is_constant(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_environment(expression: ast.expr) -> bool:
    match expression:
        case ast.Attribute(value=ast.Name(id="os"), attr="environ"):
            return True
    return False


def _is_never(test: ast.expr, name: str) -> bool:
    """Of what checkers read alone, and of a module's own main where it is not the program."""
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]):
            return name != "__main__"
    return False
