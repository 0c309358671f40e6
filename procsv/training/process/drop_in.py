"""Replace TensorFlow's classes with procsv's, so that an unchanged program runs supervised.

A program calls `install`; `procsv launch --drop-in` has it called as soon as TensorFlow has been imported, and never
imports TensorFlow for it.  `uninstall` puts TensorFlow's classes back.  patches.py says where a class is replaced.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import procsv
from procsv.training.graph.patches import ClassPatch

_installed: list[ClassPatch] = []


def install() -> None:
    """Replaces every class of tf.compat.v1.train that procsv has, too; nothing if that is done already."""
    if _installed:
        return
    for patch in class_patches():
        patch.apply()
        _installed.append(patch)


def uninstall() -> None:
    """Puts TensorFlow's classes back, in all that has been imported meanwhile, too."""
    while _installed:
        _installed.pop().undo()


def install_later() -> None:
    """Installs at the end of the first `import tensorflow`, or now if TensorFlow is imported."""
    if "tensorflow" in sys.modules:
        install()
    else:
        sys.meta_path.insert(0, _AfterTensorFlow())


def class_patches() -> list[ClassPatch]:
    """One patch a class, and one a layer of monitored sessions: libraries build those layers themselves."""
    compat = importlib.import_module("tensorflow").compat
    public = [compat.v1.train, compat.v2.compat.v1.train]
    names = [name for name in procsv.__all__ if hasattr(compat.v1.train, name)]
    pairs = [(name, getattr(compat.v1.train, name), getattr(procsv, name)) for name in names]
    theirs = importlib.import_module("tensorflow.python.training.monitored_session")
    ours = importlib.import_module("procsv.training.monitored.sessions")
    pairs += [(name, getattr(theirs, name), getattr(ours, name)) for name in ours.LAYERS]
    return [ClassPatch(name, old, new, public) for name, old, new in pairs if old is not new]


class _AfterTensorFlow:
    """A finder of TensorFlow alone, whose loader calls `install` when it has run the module."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run = loader.exec_module

        def run_and_install(module: ModuleType) -> None:
            del loader.exec_module
            run(module)
            install()

        loader.exec_module = run_and_install
        return spec
