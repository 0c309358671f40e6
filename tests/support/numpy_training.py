"""A program that trains NumPy arrays: `numpy_training.py STEPS STEP_S [SAVE_S]`; prints the hash of what they have become.

What a step does depends on the state and the step alone, so that a run that was killed ends with the bits of one that was
not.  Imports no TensorFlow, and says so at its end; a fork of what has imported it cannot tell.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import xxhash

from procsv.ipc.messaging.messages import CheckpointPlan
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.runtime.context import Runtime, current
from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.restore_client import introduce_plan, restore_newest
from procsv.training.snapshots.source import StateSource
from procsv.training.snapshots.training_run import TrainingRun
from tests.support.numpy_state import STEP, NumpyState, numpy_plan

SNAPSHOT_S = 0.05
SHAPE = (100, 120)  # little to compute: a step is to take its pause, and not a processor
IS_FORK = "tensorflow" in sys.modules


def initial() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {
        STEP: np.array(0, np.int64),
        "weights": rng.normal(size=SHAPE),
        "momentum": np.zeros(SHAPE),
        "bias": np.zeros(SHAPE[1], np.float32),
    }


def train(arrays: dict[str, np.ndarray]) -> None:
    rng = np.random.default_rng(int(arrays[STEP]))
    gradient = arrays["weights"] * 0.01 + rng.normal(size=arrays["weights"].shape)
    arrays["momentum"] *= 0.9
    arrays["momentum"] += gradient
    arrays["weights"] -= 0.1 * arrays["momentum"]
    arrays["bias"] += arrays["weights"].mean(0).astype(np.float32)
    arrays[STEP] += 1


def digest(arrays: dict[str, np.ndarray]) -> str:
    return str(xxhash.xxh3_64_hexdigest(b"".join(array.tobytes() for array in arrays.values())))


@contextlib.contextmanager
def state_run(runtime: Runtime, source: StateSource, plan: CheckpointPlan) -> Iterator[TrainingRun]:
    """Trains `source` within the block, on this thread, from the newest state there is; its last state is saved.

    An exception in the block leaves the newest snapshot: the step under way may have changed half of the state.
    """
    runtime.acquire_run()
    try:
        introduce_plan(runtime, plan)
        runtime.start_talking()
        origin = restore_newest(runtime, source)
        training = TrainingRun(runtime, source, origin, Cadence(SNAPSHOT_S, plan.save_secs), lambda news: None)
        training.start_training()
        try:
            training.save_first_state()
            assert training.snapshots is not None
            training.snapshots.start_cadence()
            yield training
            training.save(runtime.stop_reason or "final", training.final_save_s())
        finally:
            training.end_training()
    finally:
        runtime.phase = Phase.PROGRAM
        runtime.release_run()


def main(steps: int, step_s: float, save_s: float = 0.5) -> None:
    train_until(lambda step: step >= steps, step_s, save_s)


def train_chief(save_s: float = 0.5) -> None:
    """The chief trains until there is a file `end` in the logdir; all other tasks wait for their end."""
    if os.environ["PROCSV_TASK"] != "chief":
        threading.Event().wait()
    train_until(lambda _: Path(os.environ["PROCSV_LOGDIR"], "end").exists(), 0.01, save_s)


def train_until(is_over: Callable[[int], bool], step_s: float, save_s: float = 0.5) -> None:
    runtime = current()
    assert runtime is not None, "start it with `procsv launch`"
    plan = numpy_plan(runtime.paths.logdir, save_secs=save_s)
    source = NumpyState(initial(), plan)
    with state_run(runtime, source, plan) as training:
        while runtime.stop_reason is None and not is_over(source.read_step()):
            training.boundary.pass_call(train, (source.arrays,))
            time.sleep(step_s)
    assert IS_FORK or "tensorflow" not in sys.modules, "TensorFlow was imported"
    print("ended with", digest(source.arrays), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *map(float, sys.argv[2:]))
