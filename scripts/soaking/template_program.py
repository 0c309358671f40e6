"""The program of `scripts/soak --template`: template_program.py DIRECTORY FORKS STEPS

It trains some steps in a graph session with a tf.data pipeline, eagerly, and with Keras under XLA,
and checks the results. It leaves a file named by its attempt number in DIRECTORY, and is killed;
the first attempt is killed once there is a standby. The attempt after FORKS of them ends by itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from procsv.base.journal.entries import StandbyReady

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import procsv
from procsv.base.journal.file import read_journal

tf1 = tf.compat.v1
SIZE = 64
LOOK_S = 0.02


def main(done: Path, forks: int, steps: int) -> None:
    incarnation = int(os.environ["PROCSV_INCARNATION"])
    _eagerly()
    _by_keras()
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        numbers = tf.data.Dataset.range(1000).repeat().map(lambda number: number * 2, num_parallel_calls=2).prefetch(2)
        number = tf1.data.make_one_shot_iterator(numbers).get_next()
        total = tf1.get_variable("total", [], tf.int64, tf1.zeros_initializer(), use_resource=True)
        train = tf1.group(tf1.assign_add(total, number * 0 + 2), tf1.assign_add(step, 1))
        supervisor = procsv.Supervisor(summary_op=None, save_model_secs=600)
        with supervisor.managed_session() as session:
            for _ in range(steps):
                session.run(train)
            while incarnation == 1 and not _has_standby():
                session.run(train)
                threading.Event().wait(LOOK_S)
            assert session.run(total) == 2 * session.run(step), "the state is not that of one step"
            (done / str(incarnation)).touch()
            if incarnation <= forks:
                os.kill(os.getpid(), signal.SIGKILL)


def _has_standby() -> bool:
    """Whether there is a standby by now that the next trainers can be forked from."""
    journal = Path(os.environ["PROCSV_LOGDIR"], "procsv", "journal.jsonl")
    return any(isinstance(line.entry, StandbyReady) for line in read_journal(journal))


def _eagerly() -> None:
    matrix = tf.constant(np.eye(SIZE))
    assert float(tf.reduce_sum(matrix @ matrix)) == SIZE
    assert np.isfinite(np.linalg.svd(np.random.rand(SIZE, SIZE))[1]).all()


def _by_keras() -> None:
    model = tf.keras.Sequential([tf.keras.Input([8]), tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=True)
    history = model.fit(np.ones([32, 8]), np.ones([32, 1]), epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
