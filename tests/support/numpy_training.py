"""A program that trains NumPy arrays: `numpy_training.py STEPS [STEP_S]`; prints the hash of what they have become.

What a step does depends on the state and the step alone, so that a run that was killed ends with the bits of one that was
not.  Imports no TensorFlow, and says so at its end.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import xxhash

from procsv.training.runtime.context import current
from procsv.training.snapshots.state_run import state_run
from tests.support.numpy_state import STEP, NumpyState, numpy_plan

SNAPSHOT_S = 0.05


def initial() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {
        STEP: np.array(0, np.int64),
        "weights": rng.normal(size=(300, 400)),
        "momentum": np.zeros((300, 400)),
        "bias": np.zeros(400, np.float32),
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


def main(steps: int, step_s: float) -> None:
    runtime = current()
    assert runtime is not None, "start it with `procsv launch`"
    plan = numpy_plan(runtime.paths.logdir, save_secs=0.5)
    source = NumpyState(initial(), plan)
    with state_run(runtime, source, plan, SNAPSHOT_S) as training:
        while not training.should_stop and source.read_step() < steps:
            training.boundary.pass_call(train, (source.arrays,))
            time.sleep(step_s)
    assert "tensorflow" not in sys.modules, "TensorFlow was imported"
    print("ended with", digest(source.arrays), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
