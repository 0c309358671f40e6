"""Run a program the way the interpreter would: as `__main__`, with its own argv and path.

The bootstrap calls this on the main thread.  A module runs as with `python -m`, a path as with
`python file`, and a function as a console script would call it.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import shlex
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from procsv.base.errors import UserError
from procsv.base.system.target import Target, is_archive
from procsv.training.graph.patches import AttributePatch
from procsv.training.process.imported import IMPORTED
from procsv.training.runtime.log import say

CHANGES_MAX = 5  # changes of the environment that a message names
READS_INPUT = "the program has read standard input, which is empty in a run; pass arguments or a file instead"


class _EmptyInput(io.FileIO):
    was_read = False

    def readinto(self, buffer: Any) -> int | None:
        self.was_read = True
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self.was_read = True
        return super().readall()


def watch_input() -> Callable[[], bool]:
    """Watches standard input; the returned function says whether the program has read `sys.stdin`.

    Standard input is empty in a run.  If the program has read it and then fails, the report says
    so.
    """
    own = sys.stdin
    if own is None or not os.path.samestat(os.fstat(0), Path(os.devnull).stat()):
        return lambda: False
    raw = _EmptyInput(0, closefd=False)
    raw.name = own.name
    sys.stdin = io.TextIOWrapper(io.BufferedReader(raw), own.encoding, own.errors)
    sys.stdin.mode = own.mode  # type: ignore[misc]  # read-only in typeshed, but the interpreter sets it
    return lambda: raw.was_read


def allow_own_group() -> None:
    """Makes the program's setpgid, setpgrp and setsid succeed for this process, without effect.

    This process already leads a group and a session of its own, and the system would refuse these
    calls to a session leader.  Outside procsv a program is rarely one.
    """

    def allowing(begin: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(begin)
        def allowed(*ids: int) -> None:
            pid = os.getpid()
            if os.getsid(0) != pid or any(one not in (0, pid) for one in ids):
                begin(*ids)

        return allowed

    for name in ("setpgid", "setpgrp", "setsid"):
        AttributePatch(os, name, allowing).apply()


def watch_exec() -> None:
    """Warns when the program replaces this process, because procsv then saves nothing."""
    pid, before = os.getpid(), dict(os.environ)

    def telling(execute: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        @functools.wraps(execute)
        def told(path: Any, args: Any, *env: Any) -> NoReturn:
            if os.getpid() == pid and Path(os.fsdecode(path)).exists():  # execvp tries each directory
                say(_replaced(before, dict(env[0] if env else os.environ)))
            execute(path, args, *env)

        return told

    for name in ("execv", "execve"):
        AttributePatch(os, name, telling).apply()


def _replaced(before: dict[str, str], now: dict[str, str]) -> str:
    text = (
        "the program replaces its process, so procsv no longer protects it: it takes no more snapshots or checkpoints"
    )
    changed = [f"{name}={shlex.quote(value)}" for name, value in now.items() if before.get(name) != value]
    if not changed:
        return text
    return (
        f"{text}. If the program does this to set environment variables, set them at launch: "
        f"{' '.join(changed[:CHANGES_MAX])} procsv launch …"
    )


def run_program(target: Target, args: list[str]) -> None:
    """Runs `target` to its end, and lets its exceptions pass."""
    match target.kind:
        case "module":
            _run_module(target.module, args)
        case "path":
            _run_path(target.path, target.text, args)
        case "function":
            _run_function(target.module, target.function, args)


def _put_first(directory: str) -> None:
    """Puts the program's directory where the interpreter would, replacing this process's own."""
    if os.environ.get("PYTHONSAFEPATH"):
        return  # as the user wants
    if sys.flags.safe_path:
        sys.path.insert(0, directory)
    else:
        sys.path[0] = directory


def _become_main(**attributes: Any) -> dict[str, Any]:
    """Installs a fresh `__main__`, in which the program finds nothing of procsv's.

    pickle and multiprocessing read it, too.  `attributes` are the module's attributes, except its
    name and those that are None.
    """
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __annotations__={}, **attributes)
    sys.modules["__main__"] = main
    return main.__dict__


def _become_main_of(spec: ModuleSpec, package: str | None) -> dict[str, Any]:
    return _become_main(
        __spec__=spec, __file__=spec.origin, __cached__=spec.cached, __loader__=spec.loader, __package__=package
    )


def _run_module(name: str, args: list[str]) -> None:
    """Runs `python -m name`: sys.path[0] is the working directory, argv[0] the module's file."""
    _put_first(os.getcwd())
    spec = _spec(name)
    assert spec.loader is not None
    IMPORTED.note_file(spec.origin or "")
    code = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]  # of all loaders that find source
    if code is None:
        raise ImportError(f"no code for {name}", name=name)
    sys.argv = [spec.origin or name, *args]
    exec(code, _become_main_of(spec, spec.parent))


def _spec(name: str) -> ModuleSpec:
    spec = find_spec(name)  # imports the parent packages, as python -m does
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{name}.__main__")
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return spec


def _run_path(path: str, shown: str, args: list[str]) -> None:
    """Runs `python path`: sys.path[0] is the script's directory.

    If `path` is a directory or an archive, its __main__ runs.
    """
    sys.argv = [shown, *args]
    IMPORTED.note_file(path)
    if Path(path).is_dir() or is_archive(Path(path)):
        _put_first(path + shown[len(shown.rstrip("/")) :])  # the interpreter keeps a final slash
        sys.modules.pop("__main__", None)  # otherwise the finder returns the running one
        spec = find_spec("__main__")
        if spec is None or spec.loader is None:
            raise UserError(f"{path} has no __main__.py")
        code = spec.loader.get_code("__main__")  # type: ignore[attr-defined]
        names = _become_main_of(spec, "")
    else:
        _put_first(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120  as the interpreter does
        loader: SourcelessFileLoader | SourceFileLoader
        if path.endswith(".pyc"):
            loader = SourcelessFileLoader("__main__", path)
            code = loader.get_code("__main__")
        else:  # like the interpreter, without a .pyc: an edited script may have the old one's time and size
            loader = SourceFileLoader("__main__", path)
            code = loader.source_to_code(loader.get_data(path), path)
        names = _become_main(__file__=path, __cached__=None, __loader__=loader)
    if code is None:
        raise UserError(f"{path} holds no code")
    exec(code, names)


def _run_function(module: str, function: str, args: list[str]) -> None:
    """Runs like a console script: imports, calls the function, exits with its result."""
    _put_first(os.getcwd())
    names = _become_main()
    imported = importlib.import_module(module)
    sys.argv = [getattr(imported, "__file__", None) or module, *args]
    call: Any = imported
    for part in function.split("."):
        try:
            call = getattr(call, part)
        except AttributeError:
            raise UserError(f"{module} has no {function}; write pkg.module:function") from None
    if not callable(call):
        raise UserError(f"{module}:{function} is not a function but {type(call).__name__}")
    names["main"] = call
    sys.exit(call())
