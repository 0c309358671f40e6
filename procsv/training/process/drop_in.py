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

_installed: list[tuple[str, type[Any], type[Any]]] = []  # name, TensorFlow's, ours
_OWN = ("procsv", "services", "ipc")


def install() -> None:
    """Replaces every class of tf.compat.v1.train that procsv has, too.  Once is enough, twice does no harm."""
    if _installed:
        return
    for name, theirs, ours in _pairs():
        _replace(name, theirs, ours)
        _installed.append((name, theirs, ours))


def uninstall() -> None:
    """Puts TensorFlow's classes back, in all that has been imported meanwhile, too."""
    while _installed:
        name, theirs, ours = _installed.pop()
        _replace(name, ours, theirs)


def install_later() -> None:
    """Installs at the end of the first `import tensorflow`, or now if that has been."""
    if "tensorflow" in sys.modules:
        install()
    else:
        sys.meta_path.insert(0, _AfterTensorFlow())


def _pairs() -> list[tuple[str, Any, Any]]:
    train = importlib.import_module("tensorflow").compat.v1.train
    names = [name for name in procsv.__all__ if hasattr(train, name)]
    pairs = [(name, getattr(train, name), getattr(procsv, name)) for name in names]
    # Layers of a monitored session, which libraries build themselves.
    theirs = importlib.import_module("tensorflow.python.training.monitored_session")
    ours = importlib.import_module("procsv.training.monitored.sessions")
    pairs += [(name, getattr(theirs, name), getattr(ours, name)) for name in ours.LAYERS]
    return [(name, old, new) for name, old, new in pairs if old is not new]


def _replace(name: str, old: Any, new: Any) -> None:
    # The module that defines it first: whatever is imported from it from now on gets the new one.
    home = sys.modules[(old if old.__module__.startswith("tensorflow") else new).__module__]
    setattr(home, name, new)
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] in _OWN or not isinstance(module, ModuleType):
            continue
        for attribute in [key for key, value in list(vars(module).items()) if value is old]:
            setattr(module, attribute, new)
    public = importlib.import_module("tensorflow").compat
    for api in (public.v1.train, public.v2.compat.v1.train):
        if not name.startswith("_") and getattr(api, name, None) is old:  # these load their names late
            setattr(api, name, new)


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
