"""Define the supervisors to compare, each as a session to train with.

Called by trial.py and program.py, in a process of their own for each measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from scripts.benchmarks.model import Session
from scripts.benchmarks.settings import Arm

tf1 = tf.compat.v1


@dataclass(frozen=True, slots=True)
class Loop:
    """What a training loop needs."""

    session: Session
    should_stop: Callable[[], bool]
    after_step: Callable[[], object] = lambda: None  # what the program does between two steps


class _Saves:
    """Calls Saver.save on the training thread every `save_s` seconds."""

    def __init__(self, saver: Session, session: Session, path: str, step: Session, save_s: float) -> None:
        self._save: Callable[[], object] = lambda: saver.save(session, path, global_step=step)
        self._save_s, self._due_s = save_s, time.monotonic() + save_s

    def after_step(self) -> None:
        if time.monotonic() >= self._due_s:
            self._save()
            self._due_s = time.monotonic() + self._save_s


def make_config(is_trivial: bool) -> Session:
    """`is_trivial`: for a graph of a few small ops, which then run in the calling thread instead of
    a pool.
    """
    config = tf1.ConfigProto(device_count={"GPU": 0})
    if is_trivial:
        config.inter_op_parallelism_threads = -1  # a hand-over sometimes costs 10 to 20 µs, which is noise here
    return config


@contextmanager
def open_session(
    arm: Arm, logdir: str | None, save_s: float, is_trivial: bool = False, between: bool = True
) -> Iterator[Loop]:
    """Open a session on the default graph that saves every `save_s` seconds. `logdir` None: the
    run's own (procsv).

    `between`: procsv takes snapshots between checkpoints.
    """
    config = make_config(is_trivial)
    match arm:
        case "bare":
            initialize = tf1.global_variables_initializer()
            with tf1.Session(config=config) as session:
                session.run(initialize)
                yield Loop(session, lambda: False)
        case "saver":
            saver, step = tf1.train.Saver(), tf1.train.get_global_step()
            initialize = tf1.global_variables_initializer()
            with tf1.Session(config=config) as session:
                session.run(initialize)
                yield Loop(
                    session, lambda: False, _Saves(saver, session, f"{logdir}/model.ckpt", step, save_s).after_step
                )
        case "procsv":
            import procsv

            more: dict[str, Any] = {} if between else {"snapshot_secs": None}
            ours = procsv.Supervisor(logdir=logdir, summary_op=None, save_model_secs=save_s, **more)
            with ours.managed_session(config=config) as session:
                yield Loop(session, ours.should_stop)
        case "supervisor":
            theirs = tf1.train.Supervisor(logdir=logdir, summary_op=None, save_model_secs=save_s)
            with theirs.managed_session(config=config) as session:
                yield Loop(session, theirs.should_stop)
        case "monitored" | "our_monitored":
            with names_of(arm).MonitoredTrainingSession(
                checkpoint_dir=logdir,
                save_checkpoint_secs=save_s,
                save_summaries_steps=None,
                save_summaries_secs=None,
                log_step_count_steps=None,
                config=config,
            ) as session:
                yield Loop(session, session.should_stop)


def names_of(arm: Arm) -> Session:
    """Return the module that has the arm's classes."""
    if arm in ("our_monitored", "procsv"):
        import procsv

        return procsv
    return tf1.train


@contextmanager
def open_hooked(arm: Arm, logdir: str, hooks: int) -> Iterator[Loop]:
    """Open a monitored session without hooks and files, or with the usual five hooks, none of which
    ever becomes due.
    """
    names, config, never = names_of(arm), make_config(is_trivial=True), 1_000_000_000
    if not hooks:
        with names.MonitoredSession(names.ChiefSessionCreator(config=config)) as session:
            yield Loop(session, session.should_stop)
        return
    assert hooks == 5, "step counter, summaries, checkpoints, and these two:"
    more = [tf1.train.StopAtStepHook(last_step=never), tf1.train.NanTensorHook(tf.constant(1.0))]
    with names.MonitoredTrainingSession(
        checkpoint_dir=logdir, save_summaries_steps=never, log_step_count_steps=never, config=config, hooks=more
    ) as session:
        yield Loop(session, session.should_stop)
