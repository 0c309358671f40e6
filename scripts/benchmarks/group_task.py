"""Share code between the programs of several tasks: the task, its server, its marks, and the
options.

Called by group_program.py, group_snapshots_program.py and gang_program.py. Each task has its own
pipe, PREFIX.TASK. A mark is a line as program.py writes it, with the global step that all tasks
advance. A parameter server writes one when it serves.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from scripts.benchmarks.model import Session

tf1 = tf.compat.v1
ALONE = '{"cluster": {}, "task": {"type": "chief", "index": 0}}'  # used without TF_CONFIG


@dataclass(frozen=True, slots=True)
class GroupTask:
    """This task, according to TF_CONFIG."""

    role: str
    index: int
    addresses: dict[str, list[str]]  # of all tasks
    marks: int

    @classmethod
    def open(cls, prefix: str) -> GroupTask:
        """`prefix`: of the pipes on which all tasks mark their steps."""
        config = json.loads(os.environ.get("TF_CONFIG", ALONE))
        role, index = config["task"]["type"], config["task"]["index"]
        marks = os.open(f"{prefix}.{role}.{index}", os.O_WRONLY | os.O_NONBLOCK)
        return cls(role, index, config["cluster"], marks)

    @property
    def device(self) -> str:
        return f"/job:{self.role}/task:{self.index}"

    def mark(self, step: int) -> None:
        with contextlib.suppress(BlockingIOError):  # no reader right now; training does not wait for one
            os.write(self.marks, f"{os.getpid()} {step} {time.monotonic():.6f}\n".encode())

    def serve(self) -> tuple[Session, Session]:
        """Start its server, for TensorFlow 1 graphs; return the server and the cluster.

        A parameter server stays here until its end. A task that is alone has neither, and trains in
        its own process.
        """
        tf1.disable_eager_execution()
        if not self.addresses:
            return SimpleNamespace(target=""), None
        cluster = tf1.train.ClusterSpec(self.addresses)
        server = tf1.train.Server(cluster, job_name=self.role, task_index=self.index)
        if self.role == "ps":
            self.mark(0)
            server.join()
        return server, cluster

    def session_options(self) -> dict[str, Any]:
        """Return the options of a MonitoredTrainingSession that saves no more than it must."""
        return {
            "is_chief": self.role == "chief",
            "save_summaries_steps": None,
            "save_summaries_secs": None,
            "log_step_count_steps": None,
            "config": tf1.ConfigProto(device_filters=["/job:ps", self.device], device_count={"GPU": 0}),
        }


def make_parser() -> argparse.ArgumentParser:
    """Return a parser with the common options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--arm", required=True)
    parser.add_argument("--marks", required=True)
    parser.add_argument("--mb", type=float, required=True)
    parser.add_argument("--variables", type=int, required=True)
    parser.add_argument("--pause-s", type=float, required=True)
    return parser


def parse() -> argparse.Namespace:
    """Parse the options of programs that train until they are ended, under procsv or in a shell
    loop.
    """
    parser = make_parser()
    parser.add_argument("--logdir", default=None)
    parser.add_argument("--work", type=int, required=True)
    parser.add_argument("--save-s", type=float, required=True)
    return parser.parse_args()
