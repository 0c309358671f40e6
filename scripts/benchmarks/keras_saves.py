"""The program whose saves are measured: it knows nothing of procsv, and is launched with --drop-in.

    procsv launch --drop-in … scripts.benchmarks.keras_saves --logdir DIR --mb 200 --saves 6 --notes FILE

Started by keras_cost.py. FILE receives, as JSON, the number of saved variables, and the seconds of
each `CheckpointManager.save`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import tensorflow as tf

from scripts.benchmarks.keras_model import build_model

BATCH = 32


def main() -> None:
    args = _parse()
    model, data = build_model(args.mb, BATCH)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    manager = tf.train.CheckpointManager(checkpoint, args.logdir, max_to_keep=1)
    seconds = []
    for x, y in data.take(args.saves):
        model.train_on_batch(x, y)
        begun_s = time.perf_counter()
        manager.save()
        seconds.append(time.perf_counter() - begun_s)
        tf.train.latest_checkpoint(args.logdir)  # waits until it is on disk, so that the slot is free for the next save
    variables = len({id(variable) for variable in (*model.variables, *model.optimizer.variables)})
    args.notes.write_text(json.dumps({"variables": variables, "seconds": seconds}))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--logdir", required=True)
    parser.add_argument("--mb", type=float, required=True)
    parser.add_argument("--saves", type=int, required=True)
    parser.add_argument("--notes", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
