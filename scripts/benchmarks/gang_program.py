"""One of the tasks that train in step: under MultiWorkerMirroredStrategy, marking each step on its
own pipe.

    procsv launch --workers 2 --no-chief … scripts.benchmarks.gang_program --arm procsv --marks PREFIX …
    while ! TF_CONFIG=… python -m scripts.benchmarks.gang_program --arm monitored --logdir DIR --marks PREFIX …; do :; done

Started by group_runs.py. group_task.py defines marks and options. With TensorFlow's own
CheckpointManager each task saves after the same steps, as TensorFlow requires; the first task saves
into the directory that counts.
"""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Callable

import tensorflow as tf

from scripts.benchmarks.group_task import GroupTask, parse
from scripts.benchmarks.model import BYTES_PER_ELEMENT, BYTES_PER_MB, WORK_SIZE, Session, Tensor


def main() -> None:
    args = parse()
    task = GroupTask.open(args.marks)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    elements = max(1, int(args.mb * BYTES_PER_MB / BYTES_PER_ELEMENT / args.variables))
    with strategy.scope():
        weights = [tf.Variable(tf.zeros([elements])) for _ in range(args.variables)]
    step = tf.Variable(0, dtype=tf.int64)

    def update() -> None:
        hidden = tf.ones([WORK_SIZE, WORK_SIZE])
        for _ in range(args.work):
            hidden = tf.tanh(tf.matmul(hidden, hidden))
        one = tf.distribute.get_replica_context().all_reduce("mean", hidden[0, 0] * 0.0 + 1.0)
        for variable in weights:
            variable.assign_add(tf.fill([elements], one))

    train = tf.function(lambda: strategy.run(update))
    checkpoint = tf.train.Checkpoint(step=step, weights=weights)
    after_step, pause = _keep(args, checkpoint, step, task.index), threading.Event()
    while after_step():
        train()
        step.assign_add(1)
        task.mark(int(step))
        pause.wait(args.pause_s)


def _keep(args: argparse.Namespace, checkpoint: Session, step: Tensor, index: int) -> Callable[[], bool]:
    """Restore what is saved. Return a function to call after each step, which saves if that is due
    and says whether to continue.
    """
    if args.arm == "procsv":
        import procsv

        ours = procsv.CheckpointManager(checkpoint, os.environ["PROCSV_LOGDIR"], step_counter=step)
        ours.restore_or_initialize()

        def after_our_step() -> bool:
            if int(step):
                ours.step()
            return not ours.should_stop()

        return after_our_step
    directory = args.logdir if index == 0 else f"{args.logdir}-{index}"
    theirs = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=5, step_counter=step)
    checkpoint.restore(tf.train.latest_checkpoint(args.logdir))
    every = max(1, round(args.save_s / args.pause_s / 2))

    def after_their_step() -> bool:
        if int(step) and int(step) % every == 0:
            theirs.save()
        return True

    return after_their_step


if __name__ == "__main__":
    main()
