"""Puts procsv's classes in the place of TensorFlow's own, so that a program nobody changes runs supervised.

`install` is called by a program, or by `procsv launch --drop-in` as soon as TensorFlow has been imported; `uninstall`
undoes it.  A class is replaced wherever it can be found: in the module that defines it, in all of TensorFlow's public names,
and in modules that have imported it before.  Objects that exist already, and classes that are derived
already, keep what they have.  Never imports TensorFlow by itself when it only waits for it (`install_later`).
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
    """Replaces every class of tf.compat.v1.train that procsv has, too.  Once is enough, twice does no harm."""
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
    """Installs at the end of the first `import tensorflow`, or now if that has been."""
    if "tensorflow" in sys.modules:
        install()
    else:
        sys.meta_path.insert(0, _AfterTensorFlow())


def class_patches() -> list[ClassPatch]:
    """A patch for each class of TensorFlow's that procsv has, too, and for the layers of a monitored session.

    Libraries build these layers themselves.
    """
    compat = importlib.import_module("tensorflow").compat
    public = [compat.v1.train, compat.v2.compat.v1.train]
    names = [name for name in procsv.__all__ if hasattr(compat.v1.train, name)]
    pairs = [(name, getattr(compat.v1.train, name), getattr(procsv, name)) for name in names]
    theirs = importlib.import_module("tensorflow.python.training.monitored_session")
    ours = importlib.import_module("procsv.training.monitored.sessions")
    pairs += [(name, getattr(theirs, name), getattr(ours, name)) for name in ours.LAYERS]
    return [ClassPatch(name, old, new, public) for name, old, new in pairs if old is not new]


class _AfterTensorFlow:
    """A finder that finds nothing: it sees to it that whoever loads tensorflow has us called afterwards."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            _call_after(spec.loader)
        return spec


def _call_after(loader: Any) -> None:
    """Has `loader` call `install` once it has run its module."""
    run = loader.exec_module

    def run_and_install(module: ModuleType) -> None:
        del loader.exec_module
        run(module)
        install()

    loader.exec_module = run_and_install
