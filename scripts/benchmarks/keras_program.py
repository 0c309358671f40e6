"""The fit that is killed and restarted: train under one callback and mark every batch on a pipe.

    procsv launch … scripts.benchmarks.keras_program --arm procsv --marks FIFO …
    while ! python -m scripts.benchmarks.keras_program --arm keras --logdir DIR --marks FIFO …; do :; done

Started by keras_restart.py. A mark is a line `pid step seconds` (CLOCK_MONOTONIC), written when the
batch has ended. With --notes FILE it appends a JSON line for each restored state, with the time of
the restore, and of a second restore of the same state.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import keras

from scripts.benchmarks.keras_model import build_model

EPOCHS = 100_000


class Mark(keras.callbacks.Callback):  # type: ignore[misc]  # keras is untyped
    def __init__(self, path: str) -> None:
        super().__init__()
        self._marks = os.open(path, os.O_WRONLY | os.O_NONBLOCK)

    def get_state(self) -> None:
        """Return nothing: this callback has no state."""

    def set_state(self, state: None) -> None: ...

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        line = f"{os.getpid()} {int(self.model.optimizer.iterations)} {time.monotonic():.6f}\n"
        with contextlib.suppress(BlockingIOError):  # no reader right now; training does not wait for one
            os.write(self._marks, line.encode())


def main() -> None:
    args = _parse()
    model, data = build_model(args.mb, args.batch)
    if args.arm == "procsv":
        import procsv

        if args.notes is not None:
            _note_restores(args.notes)
        ours: Any = procsv.keras.BackupAndRestore()
    else:
        ours = keras.callbacks.BackupAndRestore(args.logdir, save_freq=args.save_batches)
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[ours, Mark(args.marks)])


def _note_restores(path: Path) -> None:
    from procsv.training.keras.state import FitState

    put_back = FitState.put_back_state

    def timed(self: Any, found: Any) -> None:
        times = []
        for _ in range(2):
            begun_s = time.perf_counter()
            put_back(self, found)
            times.append(time.perf_counter() - begun_s)
        with path.open("a") as notes:
            notes.write(json.dumps({"pid": os.getpid(), "seconds": times[0], "again_s": times[1]}) + "\n")

    FitState.put_back_state = timed  # type: ignore[method-assign]  # to measure its time


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--arm", required=True)
    parser.add_argument("--marks", required=True)
    parser.add_argument("--notes", type=Path, default=None)
    parser.add_argument("--again", action="store_true", help="note how long it takes to put a state back")
    parser.add_argument("--logdir", default=None)
    parser.add_argument("--mb", type=float, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--save-batches", type=int, required=True)
    args = parser.parse_args()
    args.notes = args.notes if args.again else None
    return args


if __name__ == "__main__":
    main()
