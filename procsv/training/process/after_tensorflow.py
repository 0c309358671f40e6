"""Calls at the end of the program's first `import tensorflow`, which is never imported for them.

Used by the bootstrap, for what procsv changes in TensorFlow before the program uses it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_calls: list[Callable[[], None]] = []


def call_after_tensorflow(call: Callable[[], None]) -> None:
    """Calls `call` at the end of the first `import tensorflow`, or now if TensorFlow is imported."""
    if "tensorflow" in sys.modules:
        call()
        return
    _calls.append(call)
    if len(_calls) == 1:
        sys.meta_path.insert(0, _AfterTensorFlow())


class _AfterTensorFlow:
    """A finder of TensorFlow alone, whose loader makes the calls when it has run the module."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run = loader.exec_module

        def run_and_call(module: ModuleType) -> None:
            del loader.exec_module
            run(module)
            while _calls:
                _calls.pop(0)()

        loader.exec_module = run_and_call
        return spec
