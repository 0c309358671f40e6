"""The program that is killed and restarted: train under one supervisor and mark every step on a
pipe.

    procsv launch … scripts.benchmarks.program --arm procsv --marks FIFO …
    while ! python -m scripts.benchmarks.program --arm supervisor --logdir DIR --marks FIFO …; do :; done

Started by restart.py and idle.py. A mark is a line `pid step seconds` (CLOCK_MONOTONIC),
written when the step has ended. With --notes FILE it appends a JSON line for each restore.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import time
from pathlib import Path

import tensorflow as tf

from scripts.benchmarks.arms import open_session
from scripts.benchmarks.model import build_model
from scripts.benchmarks.recording import Restore, record_restores

tf1 = tf.compat.v1


def main() -> None:
    args = _parse()
    tf1.disable_eager_execution()
    marks = os.open(args.marks, os.O_WRONLY | os.O_NONBLOCK)
    if args.notes is not None:
        record_restores(lambda restore: _note(args.notes, restore), args.again)
    with tf.Graph().as_default():
        model = build_model(args.mb, args.variables, args.kind, args.work)
        with open_session(args.arm, args.logdir, args.save_s) as loop:
            while not loop.should_stop():
                step = int(loop.session.run(model.train))
                line = f"{os.getpid()} {step} {time.monotonic():.6f}\n"
                with contextlib.suppress(BlockingIOError):  # no reader right now; training does not wait for one
                    os.write(marks, line.encode())


def _note(path: Path, restore: Restore) -> None:
    with path.open("a") as notes:
        notes.write(json.dumps({"pid": os.getpid(), **dataclasses.asdict(restore)}) + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--arm", required=True)
    parser.add_argument("--marks", required=True)
    parser.add_argument("--notes", type=Path, default=None)
    parser.add_argument("--again", action="store_true", help="restore twice from memory, for the time of the second")
    parser.add_argument("--logdir", default=None)
    parser.add_argument("--mb", type=float, required=True)
    parser.add_argument("--variables", type=int, required=True)
    parser.add_argument("--kind", default="resource")
    parser.add_argument("--work", type=int, required=True)
    parser.add_argument("--save-s", type=float, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
