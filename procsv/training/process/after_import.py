"""Call functions at the end of the program's first import of a package.

The calls never import the package themselves.  The bootstrap and drop_in.py use them to change
TensorFlow and Keras before the program uses them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_calls: dict[str, list[Callable[[], None]]] = {}  # by package
_sought: set[str] = set()  # packages for which a finder now searches


def call_after_import(package: str, call: Callable[[], None]) -> None:
    """Calls `call` at the end of the first import of `package`, or now if it is imported."""
    if is_imported(package):
        call()
        return
    _calls.setdefault(package, []).append(call)
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def forget_call(package: str, call: Callable[[], None]) -> None:
    """Cancels `call`."""
    with contextlib.suppress(ValueError):
        _calls.get(package, []).remove(call)


def is_imported(package: str) -> bool:
    """Whether `package` is completely imported."""
    module = sys.modules.get(package)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


class _AfterImport:
    """A finder for packages in `_calls` only; its loader runs the module, then makes the calls."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not _calls.get(name) or name in _sought:
            return None
        _sought.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            _sought.discard(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run = loader.exec_module

        def run_and_call(module: ModuleType) -> None:
            del loader.exec_module
            run(module)
            calls = _calls.get(name, [])
            while calls:
                calls.pop(0)()

        loader.exec_module = run_and_call
        return spec
