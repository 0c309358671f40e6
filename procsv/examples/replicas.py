"""replicas: train the network of `digits` with a chief and workers, and variables on parameter
servers.

    procsv launch --logdir runs/replicas --workers 2 --ps 1 --evaluators 1 procsv.examples.replicas [--steps N] ...

Each task runs this program, and learns from TF_CONFIG which task it is and where the others are.
Chief and workers train on batches of their own, each as fast as it can, and update the same
variables (asynchronous training). So no two runs are alike. An evaluator reads the checkpoints as
they appear. Kill any task: the others keep training, and the killed task is back in a second or
two.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

import procsv
from procsv.examples.digits import Batches, Images, Network, build_network, load_images
from procsv.examples.progress import Progress

tf1 = tf.compat.v1

LOOK_S = 1.0  # how often the evaluator looks for a new checkpoint
SEEDS = 1000  # distance between the seeds of two tasks' batches


@dataclass(frozen=True, slots=True)
class Task:
    """The task that this process is, and its cluster."""

    role: str
    index: int
    cluster: Any  # a tf.train.ClusterSpec

    @property
    def device(self) -> str:
        return f"/job:{self.role}/task:{self.index}"

    @property
    def number(self) -> int:
        """The number of the task. It is different for each task that trains."""
        return 0 if self.role == "chief" else self.index + 1


def find_task() -> Task:
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    if "task" not in config:
        sys.exit("procsv.examples.replicas: start it with `procsv launch --workers 2 --ps 1 procsv.examples.replicas`")
    task = config["task"]
    return Task(task["type"], task["index"], tf1.train.ClusterSpec(config["cluster"]))


def train(task: Task, target: str, images: Images, args: argparse.Namespace) -> None:
    """Train until the global step, which all tasks advance, reaches the last one."""
    with tf1.device(tf1.train.replica_device_setter(cluster=task.cluster, worker_device=task.device)):
        network = build_network(args.seed, use_resource=True)
    batches, pause = Batches(images, args.batch, args.seed + SEEDS * task.number), threading.Event()
    session = procsv.MonitoredTrainingSession(
        target,
        is_chief=task.role == "chief",
        checkpoint_dir=os.environ["PROCSV_LOGDIR"],
        hooks=[tf1.train.StopAtStepHook(last_step=args.steps)],
        save_checkpoint_secs=args.save_model_secs,
        config=tf1.ConfigProto(device_filters=["/job:ps", task.device], device_count={"GPU": 0}),
    )
    with session:
        progress, own_step = Progress(0, args.steps), 0
        while not session.should_stop():
            loss, step = session.run([network.loss, network.train], network.feed(batches.at(own_step)))
            own_step += 1
            progress.show(int(step), f"loss {loss:.4f}")
            pause.wait(args.step_ms / 1000)
    progress.end_line()


def evaluate(images: Images, args: argparse.Namespace) -> None:
    """Print the accuracy of each checkpoint on held-out images, up to the last one."""
    network, pause, last = build_network(args.seed, use_resource=True), threading.Event(), ""
    saver, logdir = tf1.train.Saver(), os.environ["PROCSV_LOGDIR"]
    with tf1.Session(config=tf1.ConfigProto(device_count={"GPU": 0})) as session:
        while True:
            newest = tf1.train.latest_checkpoint(logdir) or ""
            if newest == last:
                pause.wait(LOOK_S)
                continue
            last = newest
            if (step := _restore(saver, session, newest, network)) is None:
                continue  # a newer checkpoint has replaced this one
            accuracy = session.run(network.accuracy, network.feed(images))
            print(f"step {step}  test accuracy {accuracy:.4f}", flush=True)
            if step >= args.steps:
                return


def _restore(saver: Any, session: Any, path: str, network: Network) -> int | None:
    try:
        saver.restore(session, path)
    except (ValueError, tf.errors.NotFoundError):
        return None
    return int(session.run(network.step))


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="procsv.examples.replicas", description="Train digits in several tasks.")
    parser.add_argument("--steps", type=int, default=4000, help="global step at which training ends (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the weights and the batches (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="images per step (%(default)s)")
    parser.add_argument("--step-ms", type=float, default=0.0, help="pause after each step, for demonstrations")
    parser.add_argument("--save-model-secs", type=float, default=10, help="seconds between checkpoints (%(default)s)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args, task = parse(argv), find_task()
    images, test = load_images(args.seed)
    if not 1 <= args.batch <= len(images):
        sys.exit(f"procsv.examples.replicas: --batch must be from 1 to {len(images)}")
    tf1.disable_eager_execution()
    if task.role == "evaluator":
        evaluate(test, args)
        return 0
    server = tf1.train.Server(task.cluster, job_name=task.role, task_index=task.index)
    if task.role == "ps":
        server.join()  # returns never; the watchdog ends this process
    train(task, server.target, images, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
