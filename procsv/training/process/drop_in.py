"""Replace TensorFlow's classes with procsv's, so that an unchanged program runs supervised.

A program calls `install`; `procsv launch --drop-in` has it called as soon as TensorFlow has been imported, and never
imports TensorFlow for it.  `uninstall` puts TensorFlow's classes back.  patches.py says where a class is replaced.
"""

from __future__ import annotations

import importlib

import procsv
from procsv.training.graph.patches import ClassPatch
from procsv.training.process.after_tensorflow import call_after_tensorflow

LEFT_ALONE = ("CheckpointManager",)  # a program has to say where its steps end

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
    call_after_tensorflow(install)


def class_patches() -> list[ClassPatch]:
    """One patch a class, and one a layer of monitored sessions: libraries build those layers themselves."""
    compat = importlib.import_module("tensorflow").compat
    public = [compat.v1.train, compat.v2.compat.v1.train]
    names = [name for name in procsv.__all__ if hasattr(compat.v1.train, name) and name not in LEFT_ALONE]
    pairs = [(name, getattr(compat.v1.train, name), getattr(procsv, name)) for name in names]
    theirs = importlib.import_module("tensorflow.python.training.monitored_session")
    ours = importlib.import_module("procsv.training.monitored.sessions")
    pairs += [(name, getattr(theirs, name), getattr(ours, name)) for name in ours.LAYERS]
    return [ClassPatch(name, old, new, public) for name, old, new in pairs if old is not new]
