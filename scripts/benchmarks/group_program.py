"""One task of between-graph training: a server, a chief or a worker that trains and marks each step
on its own pipe.

    procsv launch --workers 2 --ps 1 … scripts.benchmarks.group_program --arm procsv --marks PREFIX …
    while ! TF_CONFIG=… python -m scripts.benchmarks.group_program --arm monitored --logdir DIR --marks PREFIX …; do :; done

Started by group_runs.py. Both arms train under MonitoredTrainingSession: procsv's, or TensorFlow's.
"""

from __future__ import annotations

import os
import threading

import tensorflow as tf

from scripts.benchmarks.arms import names_of
from scripts.benchmarks.group_task import GroupTask, parse
from scripts.benchmarks.model import build_model

tf1 = tf.compat.v1


def main() -> None:
    args = parse()
    task = GroupTask.open(args.marks)
    server, cluster = task.serve()
    with tf1.device(tf1.train.replica_device_setter(cluster=cluster, worker_device=task.device)):
        model = build_model(args.mb, args.variables, "resource", args.work)
    session = names_of(args.arm).MonitoredTrainingSession(
        server.target,
        checkpoint_dir=os.environ.get("PROCSV_LOGDIR", args.logdir),
        save_checkpoint_secs=args.save_s,
        **task.session_options(),
    )
    pause = threading.Event()
    with session:
        while not session.should_stop():
            task.mark(int(session.run(model.train)))
            pause.wait(args.pause_s)


if __name__ == "__main__":
    main()
