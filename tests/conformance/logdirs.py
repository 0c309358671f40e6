"""A small model to train, and readers of its logdir's events and checkpoints, for the tests of this folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1
WAIT_S_MAX = 300.0


class Model:
    """A step, a variable that equals it, and a summary of it."""

    def __init__(self) -> None:
        self.step = tf1.train.get_or_create_global_step()
        self.value = tf1.get_variable("weight", [], tf.float32, initializer=tf1.zeros_initializer())
        self.train = tf.group(tf1.assign_add(self.step, 1), tf1.assign_add(self.value, 1.0))
        tf1.summary.scalar("value", self.value)


def look_op() -> tuple[threading.Event, Any]:
    """Return a worker's op that finds uninitialized variables, and the event of its first run."""
    has_looked = threading.Event()

    def look(missing: Any) -> Any:
        has_looked.set()
        return missing

    return has_looked, tf1.py_func(look, [tf1.report_uninitialized_variables()], tf.string)


def wait_for(found: Callable[[], Any]) -> Any:
    deadline_s, pause = time.monotonic() + WAIT_S_MAX, threading.Event()
    while not (result := found()):
        assert time.monotonic() < deadline_s
        pause.wait(0.02)
    return result


def events(logdir: Path) -> list[Any]:
    return [e for path in sorted(logdir.glob("events.out*")) for e in tf1.train.summary_iterator(str(path))]


def said(event: Any) -> str:
    """Return one word for an event."""
    what = event.WhichOneof("what")
    if what == "session_log":
        return str(tf1.SessionLog.SessionStatus.Name(event.session_log.status))
    return str(event.summary.value[0].tag) if what == "summary" else str(what)


def listed(logdir: Path) -> tuple[str, list[str]]:
    """Return the `checkpoint` file: the latest, and all."""
    state = tf.train.get_checkpoint_state(str(logdir))
    return state.model_checkpoint_path, list(state.all_model_checkpoint_paths)


def has_checkpoint(logdir: Path, name: str) -> Callable[[], bool]:
    """Return a check for whether `name` is the latest checkpoint."""
    return lambda: (logdir / "checkpoint").exists() and listed(logdir)[0] == str(logdir / name)


def saved(logdir: Path, key: str) -> Any:
    """Return a variable's value in the latest checkpoint."""
    return tf.train.load_checkpoint(str(logdir)).get_tensor(key)
