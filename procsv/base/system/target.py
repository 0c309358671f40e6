"""Find the program that TARGET of `procsv launch` names, without importing any of it.

The command line uses it to refuse a missing target, and the trainer's bootstrap to run it.  It
never executes the user's code: it searches packages level by level, without reading their __init__.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import sys
import zipfile
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import decode_source
from pathlib import Path
from pkgutil import iter_modules
from typing import Literal

import msgspec

from procsv.base.errors import UserError

FORMS = "write pkg.module, path/to/train.py or pkg.module:function"
_MAKES_NAMES = {"__getattr__", "eval", "exec", "globals", "locals", "modules", "setattr", "vars", "__dict__"}
_PATH_SUFFIXES = (".py", ".pyc", ".pyz", ".zip")


class Target(msgspec.Struct, frozen=True):
    """A program.

    Kinds module and function have `module`, and kind function also `function`.  Kind path has
    `path` (absolute).  The other fields are "".
    """

    kind: Literal["module", "path", "function"]
    text: str  # as the user wrote it
    module: str = ""
    path: str = ""
    function: str = ""

    @property
    def name(self) -> str:
        """The name after which the default logdir is called."""
        if self.kind == "path":
            return Path(self.path).stem or "run"
        last = self.module.rpartition(".")[2]
        return f"{last}.{self.function}" if self.function else last

    def home(self, cwd: Path) -> str:
        """Returns the directory in which the program finds its own modules first."""
        return str(cwd) if self.kind != "path" else os.path.dirname(os.path.realpath(self.path))  # noqa: PTH120


def parse_target(text: str, cwd: Path) -> Target:
    """Parses TARGET; UserError if it is invalid.

    Looks at files only to see whether `text` names one.
    """
    if not text:
        raise UserError(f"TARGET is empty; {FORMS}")
    file = text.partition(":")[0]
    if file.endswith(_PATH_SUFFIXES) or "/" in text or (cwd / text).is_file():
        return Target("path", text, path=str((cwd / text).absolute()))
    module, colon, function = text.partition(":")
    if _is_dotted(module) and (not colon or _is_dotted(function)):
        return Target("function" if colon else "module", text, module=module, function=function)
    if (cwd / text).is_dir():  # a directory whose name cannot be a module's
        return Target("path", text, path=str((cwd / text).absolute()))
    raise UserError(f"TARGET {text!r} is neither a module, nor a file, nor a function; {FORMS}")


def find_target(text: str, cwd: Path, sys_path: Sequence[str] | None = None) -> Target:
    """Parses TARGET and checks that the program exists.

    UserError says what was searched for, and where.
    """
    target = parse_target(text, cwd)
    if target.kind == "path":
        _check_path(target, cwd)
    else:
        _check_module(target, [str(cwd), *(sys.path if sys_path is None else sys_path)])
    return target


def _is_dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


# -- paths ---------------------------------------------------------------------------------------------------
def _check_path(target: Target, cwd: Path) -> None:
    path = Path(target.path)
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise UserError(f"{target.text} is a directory without a __main__.py; {FORMS}")
    elif not path.exists():
        file, colon, function = target.text.rpartition(":")
        if colon and (cwd / file).is_file():
            raise UserError(f"{target.text}: a function is named by its module; write {Path(file).stem}:{function}")
        raise UserError(f"there is no file {path}{_near(path.name, _names_in(path.parent))}")
    elif (path.suffix in (".zip", ".pyz") or is_archive(path)) and not _has_main(path):
        raise UserError(f"{target.text} has no __main__.py in it, so python cannot run it")
    elif not _is_readable(path):
        raise UserError(f"{path} cannot be read: check its permissions")


def is_archive(path: Path) -> bool:
    """Whether python runs the __main__ in this file.

    Its name does not matter: a zipapp often has no suffix.
    """
    return path.is_file() and zipfile.is_zipfile(path)


def _has_main(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return bool({"__main__.py", "__main__.pyc"} & set(archive.namelist()))
    except (OSError, zipfile.BadZipFile):
        return False


def _is_readable(path: Path) -> bool:
    try:
        with path.open("rb"):
            return True
    except OSError:
        return False


def _names_in(directory: Path) -> list[str]:
    try:
        return [entry.name for entry in directory.iterdir() if entry.suffix in _PATH_SUFFIXES or entry.is_dir()]
    except OSError:
        return []


# -- modules -------------------------------------------------------------------------------------------------
def _check_module(target: Target, search: list[str]) -> None:
    where: list[str] | None = None  # None: the top level
    found = ""
    for part in target.module.split("."):
        name = f"{found}.{part}" if found else part
        spec = _find_spec(name, part, search if where is None else where, is_top=where is None)
        if spec is None:
            raise UserError(_not_found(target, name, found, search if where is None else where))
        where = list(spec.submodule_search_locations) if spec.submodule_search_locations is not None else None
        found = name
        if where is None and found != target.module:
            raise UserError(
                f"{target.text}: {found} is a module, not a package, so nothing can be imported from inside it"
            )
    if target.kind == "function" and spec is not None and where is None:  # a package's submodules are names in it, too
        _check_function(target, spec)
    if where is not None and target.kind == "module" and not _find_spec(f"{found}.__main__", "__main__", where, False):
        inside = sorted(module.name for module in iter_modules(where))
        hint = f"; it has {', '.join(f'{found}.{name}' for name in inside[:8])}" if inside else ""
        raise UserError(f"{target.text} is a package without a __main__, so python cannot run it{hint}")


def _find_spec(name: str, part: str, where: Sequence[str], is_top: bool) -> ModuleSpec | None:
    """Finds the spec of module `name`, whose last part is `part`, in `where`.

    PathFinder gets only the last part, because a dotted name would need an imported parent.  Other
    finders (of editable installs) use the whole name.
    """
    spec = PathFinder.find_spec(part, where)
    if spec is not None and (spec.origin is not None or not is_top):
        return spec
    for finder in sys.meta_path:
        if finder is not PathFinder:
            with contextlib.suppress(Exception):  # a fault in another package's finder is no reason to stop
                other = finder.find_spec(name, None if is_top else where)
                if other is not None:
                    return other
    return spec  # a namespace package, or None


def _check_function(target: Target, spec: ModuleSpec) -> None:
    """Raises UserError if the function's name is not in the module's source.

    Does not judge a source that may create names as it runs (_MAKES_NAMES, `import *`).
    """
    name = target.function.partition(".")[0]
    if not (spec.origin or "").endswith(".py"):
        return
    try:
        source = decode_source(Path(spec.origin or "").read_bytes())
    except (OSError, SyntaxError, UnicodeDecodeError):
        return  # the program will report it itself
    words = set(re.findall(r"\w+", source))
    if name in words or words & _MAKES_NAMES or re.search(r"import\s*\(?\s*\*", source):
        return
    functions = re.findall(r"^(?:async\s+)?def\s+(\w+)", source, re.MULTILINE)
    raise UserError(f"{target.module} has no {name}{_near(name, functions) or f'; {FORMS}'}")


def _not_found(target: Target, name: str, parent: str, where: list[str]) -> str:
    paths = [place for place in dict.fromkeys(where) if place and Path(place).exists()]
    searched = paths if parent else paths[:1]  # at the top level only the user's own modules, not all installed ones
    nearby = [module.name for module in iter_modules(searched) if not module.name.startswith("__")]
    prefix = f"{parent}." if parent else ""
    near = _near(name, [f"{prefix}{other}" for other in nearby])
    if parent:
        return f"{target.text}: {parent} has no module {name.rpartition('.')[2]}{near}"
    return f"{target.text}: there is no module {name} here ({where[0]}) or in this Python ({sys.executable}){near}"


def _near(name: str, others: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(set(others)), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""
