"""One task of a training whose chief takes snapshots in several ways in turn: a server, a worker,
or the chief.

    procsv launch --workers 2 --ps 1 --consistent-snapshots … scripts.benchmarks.group_snapshots_program --marks PREFIX --found FILE …

Started by group_runs.py for group_snapshots.py. Every step adds one to every element of the
variables on the server, in place. Workers mark each step (group_task.py). The chief writes a line
of JSON for each snapshot into FILE, and ends after the last.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import tensorflow as tf

import procsv
from procsv.training.runtime.context import current
from procsv.training.snapshots.snapshot_queue import Record, SnapshotRequest
from procsv.training.snapshots.snapshot_state import SnapshotState
from scripts.benchmarks.group_task import GroupTask, make_parser
from scripts.benchmarks.model import BYTES_PER_ELEMENT, BYTES_PER_MB, Session, Tensor

tf1 = tf.compat.v1

Saver: TypeAlias = Any  # TensorFlow has no types

SERVERS, HELD, CHIEF, SAVER = WAYS = (
    "servers",
    "held",
    "chief",
    "saver",
)  # who captures; held: the servers, with all tasks at a boundary
GAP_S = 2.0  # of training between two snapshots, after the first is copied
WARM_UP = 1  # rounds that are not measured


class Ways:
    """The ways to take a snapshot in one session, on the chief's training thread."""

    def __init__(self, session: Session, saver: Saver) -> None:
        runtime = current()
        assert runtime is not None, "started by procsv launch"
        training: Any = runtime.training
        self._snapshots, self._source = training.snapshots, training._source
        self._capture, self._gate = self._source._capture, self._source._gate
        self._session, self._saver = session, saver
        assert self._gate is not None, "the launch has --consistent-snapshots"

    def take(self, way: str) -> Record | None:
        """Take a snapshot; return its record, or None if it is complete on return."""
        if way == SAVER:
            with tempfile.TemporaryDirectory(dir=os.environ["PROCSV_LOGDIR"]) as directory:
                self._saver.save(self._session, f"{directory}/model", write_meta_graph=False, write_state=False)
            return None
        self._capture.refusal = "" if way != CHIEF else "measured"
        self._source._gate = self._gate if way == HELD else None
        record: Record = self._snapshots.flush_request(
            self._snapshots.request(SnapshotRequest(until=SnapshotState.CAPTURED))
        )
        return record


class KeepSession(tf1.train.SessionRunHook):  # type: ignore[name-defined, misc]  # tensorflow is untyped
    """Gives access to the session that a monitored session hides."""

    session: Session = None

    def after_run(self, run_context: Session, _: Session) -> None:
        self.session = run_context.session


def main() -> None:
    args = _parse()
    task = GroupTask.open(args.marks)
    server, _ = task.serve()
    train, saver, keep = build(args.mb, args.variables), tf1.train.Saver(max_to_keep=1), KeepSession()
    session = procsv.MonitoredTrainingSession(
        server.target,
        checkpoint_dir=os.environ["PROCSV_LOGDIR"],
        hooks=[keep],
        save_checkpoint_secs=3600,
        **task.session_options(),
    )
    pause = threading.Event()

    def step() -> None:
        task.mark(int(session.run(train)))
        pause.wait(args.pause_s)

    with session:
        if task.role != "chief":
            while not session.should_stop():
                step()
            return
        step()
        ways = Ways(keep.session, saver)
        with Path(args.found).open("w") as found:
            for number in range(WARM_UP + args.rounds):
                turn = number % len(WAYS)
                for way in WAYS[turn:] + WAYS[:turn]:
                    train_for(step, GAP_S)
                    begun_s = time.monotonic()
                    record = ways.take(way)
                    stalled_s = whole_s = time.monotonic()
                    while record is not None and record.state < SnapshotState.PUBLISHED and record.failure is None:
                        step()
                        whole_s = time.monotonic()
                    if number >= WARM_UP:
                        print(json.dumps([way, begun_s, stalled_s, whole_s]), file=found, flush=True)
            train_for(step, GAP_S)


def build(mb: float, variables: int) -> Tensor:
    """Return the op of a step, which returns the global step after it."""
    elements, one = int(mb * BYTES_PER_MB / BYTES_PER_ELEMENT / variables), tf1.placeholder_with_default(1.0, [])
    with tf1.device("/job:ps/task:0"):
        count = tf1.train.get_or_create_global_step()
        zeros = tf1.zeros_initializer()
        weights = [
            tf1.get_variable(f"weights{number}", [elements], initializer=zeros, use_resource=True)
            for number in range(variables)
        ]
        with tf1.control_dependencies([tf1.assign_add(each, tf.fill([elements], one)) for each in weights]):
            return tf.identity(tf1.assign_add(count, 1))


def train_for(step: Callable[[], None], seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        step()


def _parse() -> argparse.Namespace:
    parser = make_parser()
    parser.add_argument("--found", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
