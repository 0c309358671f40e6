"""One task of a training between graphs: a server, a chief or a worker that trains and marks each step on its own pipe.

    procsv launch --workers 2 --ps 1 … scripts.benchmarks.group_program --arm procsv --marks PREFIX …
    while ! TF_CONFIG=… python -m scripts.benchmarks.group_program --arm monitored --logdir DIR --marks PREFIX …; do :; done

Started by group_runs.py.  Both arms train under MonitoredTrainingSession: procsv's, or TensorFlow's.  The pipe is PREFIX.TASK; a
mark is a line as program.py writes it, its step the global one, which all tasks add to.  A server writes one, when it serves.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import threading
import time

import tensorflow as tf

from scripts.benchmarks.arms import names_of
from scripts.benchmarks.model import build_model

tf1 = tf.compat.v1


def main() -> None:
    args, (role, index, addresses) = parse(), read_task()
    marks = open_marks(args.marks, role, index)
    tf1.disable_eager_execution()
    cluster = tf1.train.ClusterSpec(addresses)
    server = tf1.train.Server(cluster, job_name=role, task_index=index)
    if role == "ps":
        mark(marks, 0)
        server.join()  # until it is ended
    own = f"/job:{role}/task:{index}"
    with tf1.device(tf1.train.replica_device_setter(cluster=cluster, worker_device=own)):
        model = build_model(args.mb, args.variables, "resource", args.work)
    session = names_of(args.arm).MonitoredTrainingSession(
        server.target,
        is_chief=role == "chief",
        checkpoint_dir=os.environ.get("PROCSV_LOGDIR", args.logdir),
        save_checkpoint_secs=args.save_s,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
        config=tf1.ConfigProto(device_filters=["/job:ps", own], device_count={"GPU": 0}),
    )
    pause = threading.Event()
    with session:
        while not session.should_stop():
            mark(marks, int(session.run(model.train)))
            pause.wait(args.pause_s)


def read_task() -> tuple[str, int, dict[str, list[str]]]:
    """Role and index of this task, and the addresses of all."""
    config = json.loads(os.environ["TF_CONFIG"])
    return config["task"]["type"], config["task"]["index"], config["cluster"]


def open_marks(prefix: str, role: str, index: int) -> int:
    return os.open(f"{prefix}.{role}.{index}", os.O_WRONLY | os.O_NONBLOCK)


def mark(marks: int, step: int) -> None:
    with contextlib.suppress(BlockingIOError):  # nobody reads just now: training does not wait for that
        os.write(marks, f"{os.getpid()} {step} {time.monotonic():.6f}\n".encode())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--arm", required=True)
    parser.add_argument("--marks", required=True)
    parser.add_argument("--logdir", default=None)
    parser.add_argument("--mb", type=float, required=True)
    parser.add_argument("--variables", type=int, required=True)
    parser.add_argument("--work", type=int, required=True)
    parser.add_argument("--pause-s", type=float, required=True)
    parser.add_argument("--save-s", type=float, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
