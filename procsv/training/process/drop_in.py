"""Replace TensorFlow's and Keras' classes with procsv's, for programs that stay unchanged.

A program calls `install`, and so does `procsv launch --drop-in`.  A class is replaced as soon as
the program has imported its package; procsv imports nothing for it.  `uninstall` restores the
classes.  patches.py determines where a class is replaced.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence

import procsv
from procsv.training.graph.patches import AttributePatch, ClassPatch, Patch
from procsv.training.process.after_import import call_after_import, forget_call, is_imported
from procsv.training.runtime.log import say_once

ELSEWHERE = ("CheckpointManager",)  # see below: not a class of graph sessions, and replaced differently
# Functions of tf.compat.v1.train, some also of tf.train, that read checkpoints.  procsv makes them wait for earlier
# saves.
READS = (
    "latest_checkpoint",
    "get_checkpoint_state",
    "load_checkpoint",
    "checkpoint_exists",
    "get_checkpoint_mtimes",
)

_installed: list[Patch] = []
_done: set[Callable[[], None]] = set()
_left_alone: list[str] = []  # reasons why fits are not supervised


def install() -> None:
    """Replaces the classes of tf.compat.v1.train, tf.train and keras.callbacks that procsv offers.

    The classes of a package that is not imported yet are replaced after its import.
    """
    for package, replace in REPLACED.items():
        forget_call(package, replace)
        call_after_import(package, replace)


def uninstall() -> None:
    """Restores the classes, also in modules that have been imported since."""
    for package, replace in REPLACED.items():
        forget_call(package, replace)
    _done.clear()
    _left_alone.clear()
    while _installed:
        _installed.pop().undo()


def _install(patches: Callable[[], Sequence[Patch]]) -> Callable[[], None]:
    def install_once() -> None:
        if install_once in _done:
            return
        _done.add(install_once)
        for patch in patches():
            patch.apply()
            _installed.append(patch)

    return install_once


def class_patches() -> list[Patch]:
    """Patches for TensorFlow's classes and session layers, which libraries build themselves."""
    tensorflow = importlib.import_module("tensorflow")
    compat = tensorflow.compat
    names = [name for name in procsv.__all__ if hasattr(compat.v1.train, name) and name not in ELSEWHERE]
    pairs = [(name, getattr(compat.v1.train, name), getattr(procsv, name)) for name in names]
    theirs = importlib.import_module("tensorflow.python.training.monitored_session")
    ours = importlib.import_module("procsv.training.sessions.session_layers")
    pairs += [(name, getattr(theirs, name), getattr(ours, name)) for name in ours.LAYERS]
    patches: list[Patch] = []
    manager = importlib.import_module("procsv.training.eager.drop_in")
    if tensorflow.train.CheckpointManager is not manager.CheckpointManager:
        pairs.append(("CheckpointManager", manager.theirs, manager.CheckpointManager))
        looks = [(name, getattr(compat.v1.train, name)) for name in READS]
        pairs += [(name, look, manager.after_saves(look)) for name, look in looks if name != "load_checkpoint"]
        load = compat.v1.train.load_checkpoint
        pairs.append(("load_checkpoint", load, manager.note_restore(load, 0)))
        restores = ((tensorflow.train.Checkpoint, "read"), (compat.v1.train.Checkpoint, "restore"))
        patches += [AttributePatch(owner, name, lambda call: manager.note_restore(call, 1)) for owner, name in restores]
    public = [compat.v1.train, compat.v2.compat.v1.train, tensorflow.train, compat.v2.train, compat.v1.compat.v2.train]
    return [ClassPatch([pair for pair in pairs if pair[1] is not pair[2]], public), *patches]


def keras_patches() -> list[Patch]:
    """Patches for Keras' callbacks; none, and a reason in _left_alone, if procsv cannot help."""
    keras = importlib.import_module("keras")
    if keras.backend.backend() != "tensorflow":
        _left_alone.append(f"Keras runs on {keras.backend.backend()}: procsv does not protect its fits")
        return []
    ours = importlib.import_module("procsv.training.keras.backup")
    if lacks := ours.look_after_fits():
        _left_alone.append(f"Keras {keras.__version__} lacks {lacks}: procsv does not protect its fits")
        return []
    files = importlib.import_module("procsv.training.keras.model_checkpoint")
    pairs = [
        (keras.callbacks.BackupAndRestore, ours.DropInBackup),
        (keras.callbacks.ModelCheckpoint, files.ModelCheckpoint),
    ]
    return [ClassPatch([(one.__name__, one, other) for one, other in pairs if one is not other], [keras.callbacks])]


def _patch_keras() -> None:
    """Patches Keras once TensorFlow is complete: each imports the other."""
    if is_imported("tensorflow"):
        _look_after_keras()
    elif "tensorflow" in sys.modules:
        call_after_import("tensorflow", _look_after_keras)
    else:
        say_once("Keras runs without TensorFlow: procsv does not protect its fits")


def _look_after_keras() -> None:
    _install_keras()
    for text in _left_alone:
        say_once(text)


def _warn_of_legacy_keras() -> None:
    say_once("tf_keras (TF_USE_LEGACY_KERAS) is imported: procsv does not protect its fits")


_install_keras = _install(keras_patches)
REPLACED: dict[str, Callable[[], None]] = {  # package -> what to do once it is imported
    "tensorflow": _install(class_patches),
    "keras": _patch_keras,
    "tf_keras": _warn_of_legacy_keras,
}
