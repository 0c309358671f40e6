"""Attach a Supervisor, session, manager or fit to a run.

Under `procsv launch`, this is the launched run. Without it, the training gets a run of its own with
an Observer, a watchdog that restarts nothing. The constructors call `attach`. They start no
service: the services start with the first session, or with the first flush of events.
"""

from __future__ import annotations

import os
import re
import weakref
from typing import Any

import tensorflow as tf

from procsv.base.errors import UserError
from procsv.base.location import local_path
from procsv.base.run.paths import local_home
from procsv.training.runtime.context import Runtime, current
from procsv.training.runtime.log import say_once
from procsv.training.runtime.observer import Observer
from procsv.training.runtime.program_logdir import settle_logdir


def attach(
    logdir: Any, may_save: bool, graph: Any = None, *, shares_logdir: bool = False
) -> tuple[Runtime | None, Any]:
    """Return the runtime for a training of `graph` in `logdir`, and the logdir to use.

    `shares_logdir`: several trainings of this kind keep their states apart in one directory.

    The runtime is None if there is no logdir. Raise UserError if TensorFlow has no filesystem for
    the logdir, or if the launched run cannot use it. The launched run may use another directory
    than the one that the program names; then the result has this other directory.
    """
    if warning := find_new_warning(tf.__version__):
        tf.compat.v1.logging.warning("procsv: %s", warning)
    launched = current()
    if launched is not None and not logdir:
        logdir = launched.connection.start.logdir if is_logdir_free(launched, graph) else None
        launched.has_unnamed_logdir |= logdir is not None
    elif launched is not None:
        if not shares_logdir:
            refuse_second_logdir(launched, graph, os.fspath(logdir))
        logdir = settle_logdir(launched, os.fspath(logdir))
    if not logdir:
        return None, logdir
    check_filesystem(os.fspath(logdir))
    if launched is not None:
        if graph is not None and launched.logdir_user is None:
            launched.logdir_user = weakref.ref(graph)
        return launched, logdir
    observer = Observer(os.fspath(logdir), may_save)
    observer.warm_up()
    if observer.logdir != str(observer.paths.logdir):
        tf.compat.v1.logging.info(
            "procsv: checkpoints and events go to %s; journal and logs to %s", logdir, observer.paths.home
        )
    return Runtime(observer.paths, observer.peers, observer=observer), logdir


def is_logdir_free(launched: Runtime, graph: Any) -> bool:
    """Return whether a training of `graph` that names no directory may use the run's logdir.

    The first graph that trains in the run's logdir keeps it. Another graph is another model, such
    as the next fold of a cross-validation, and must not start from the state of the first.
    """
    if graph is None or launched.logdir_user is None or launched.logdir_user() is graph:
        return True
    say_once(
        "the program trains another graph and names no directory for it: procsv does not save this training, because "
        f"{launched.connection.start.logdir} has the first graph's checkpoints; to have both saved, launch each training "
        "by itself"
    )
    return False


def refuse_second_logdir(launched: Runtime, graph: Any, given: str) -> None:
    """Raise UserError if `given` is for another training than the one that has the run's logdir.

    That training named no directory. A run has one logdir and one state, so this one would start
    from the state of the other.
    """
    start = launched.connection.start
    is_same = graph is not None and (launched.logdir_user is None or launched.logdir_user() is graph)
    if launched.has_unnamed_logdir and not is_same and local_home(given) != start.checkpoint_dir:
        raise UserError(
            f"the program names {given}, but this run already saves in {start.logdir} for a training that names no "
            "directory, and would restore that training's state here: launch each training by itself, or use "
            f"TensorFlow's own class for {given}"
        )


class EagerExecution(UserError, RuntimeError):
    """Raised in eager mode. It is a RuntimeError because TensorFlow's classes raise one there."""


def check_graph_mode(what: str) -> None:
    """Raise EagerExecution, with the cure, if TensorFlow runs eagerly."""
    if tf.executing_eagerly():
        raise EagerExecution(
            f"{what} are incompatible with eager execution. Call tf.compat.v1.disable_eager_execution() right after "
            "the import of TensorFlow, or build the graph and train within `with tf.Graph().as_default():`"
        )


def check_filesystem(logdir: str) -> None:
    """Raise UserError if TensorFlow has no filesystem for the URL `logdir`.

    An unreachable filesystem only causes a warning: it may come back.
    """
    if local_path(logdir) is not None:
        return
    try:
        tf.io.gfile.exists(logdir)
    except tf.errors.UnimplementedError:
        scheme = logdir.partition("://")[0]
        raise UserError(
            f"TensorFlow has no filesystem for {scheme}:// (the logdir is {logdir}): import the package that brings it "
            "(tensorflow_io for s3://, hdfs:// and az://) before the Supervisor is made, or use another logdir"
        ) from None
    except tf.errors.OpError as error:
        tf.compat.v1.logging.warning("procsv: %s cannot be reached: %s", logdir, error.message)


# The TensorFlow versions that procsv is tested with; scripts/versions reads them here. procsv
# relies on undocumented details of Savers and sessions, so another version may differ.
OLDEST, NEWEST = (2, 16), (2, 21)

_said: set[str] = set()


def find_warning(version: str) -> str:
    """Return the warning about TensorFlow `version`; "" if procsv is tested with this version.

    A text that is not a version also gives "".
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or OLDEST <= (found := (int(match[1]), int(match[2]))) <= NEWEST:
        return ""
    side = "older" if found < OLDEST else "newer"
    tested = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    return (
        f"TensorFlow {version} is {side} than what this procsv is tested with ({tested}): "
        "drill your program before you rely on it"
    )


def find_new_warning(version: str) -> str:
    """Like `find_warning`, but only once per process and version."""
    warning = "" if version in _said else find_warning(version)
    _said.add(version)
    return warning
