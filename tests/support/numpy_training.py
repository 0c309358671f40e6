"""Train NumPy arrays: `numpy_training.py STEPS STEP_S [SAVE_S]`. Prints the hash of the final
arrays.

A step depends only on the state and the step number, so a run that was killed ends with the same
bits as one that was not. It imports no TensorFlow and asserts so at its end, except in a fork of a
process that did. It stands as `stand_at` says. Test programs with their own loops use `training`:

    with training(save_s=600) as model:
        while not model.should_stop() and model.step < 100:
            model.train()
            time.sleep(0.01)
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import xxhash

from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.ipc.shm.heartbeat import Phase
from procsv.ipc.shm.slot_header import scan_slots
from procsv.training.runtime.context import Runtime, current
from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.restore_client import introduce_plan, restore_newest
from procsv.training.snapshots.source import StateSource
from procsv.training.snapshots.training_run import TrainingRun
from tests.support.numpy_state import EVALUATION, STEP, NumpyState, numpy_plan
from tests.support.standing import stand_at

SNAPSHOT_S = 0.05  # unless the command line gives another interval
SAVED_S_MAX = 300.0
SHAPE = (100, 120)  # little to compute: a step should cost its pause, not a processor
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


def digest_after(steps: int) -> str:
    """Return the digest of an undisturbed training of that many steps."""
    arrays = initial()
    for _ in range(steps):
        train(arrays)
    return digest(arrays)


@contextlib.contextmanager
def state_run(
    runtime: Runtime, source: StateSource, plan: CheckpointPlan, on_restored: Callable[[], None] = lambda: None
) -> Iterator[TrainingRun]:
    """Train `source` in the block, on this thread, from the newest state, and save the last state.

    Among tasks that train in step, the chief saves. After an exception the newest snapshot stays:
    the step under way may have changed half of the state.
    """
    runtime.acquire_run()
    try:
        is_saved = runtime.connection.start.is_chief
        if is_saved:
            introduce_plan(runtime, plan)
        runtime.connection.start_link()
        origin = restore_newest(runtime, source)
        on_restored()
        told_s = runtime.connection.told_snapshot_s
        cadence = Cadence(SNAPSHOT_S if told_s == "auto" else told_s, plan.save_secs)
        training = TrainingRun(runtime, source, origin, cadence if is_saved else None, lambda news: None)
        training.start_training()
        try:
            training.save_first_state()
            if training.snapshots is not None:
                training.snapshots.start_cadence()
            yield training
            training.save(runtime.stops.reason or "final", training.final_save_s())
        finally:
            training.end_training()
    finally:
        runtime.heartbeat.enter_phase(Phase.PROGRAM)
        runtime.release_run()


class Model:
    """What a program trains in the block of `training`."""

    def __init__(self, runtime: Runtime, source: NumpyState, run: TrainingRun) -> None:
        self._runtime, self._source, self._run = runtime, source, run

    @property
    def step(self) -> int:
        return self._source.read_step()

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return self._source.arrays

    def should_stop(self) -> bool:
        return self._runtime.stops.reason is not None

    def train(self) -> None:
        self.pass_step(lambda: train(self.arrays))

    def pass_step(self, call: Callable[[], object]) -> None:
        """Run a step of the program's own: `call` changes the arrays and counts."""
        self._run.boundary.pass_call(call)

    def evaluate(self, call: Callable[[], object]) -> None:
        """Run a call that does not change the state."""
        self._run.boundary.pass_call(call, about=EVALUATION)

    def save(self) -> None:
        """Save a checkpoint at the program's request. It is on disk when this returns."""
        assert self._run.save("manual", SAVED_S_MAX)

    def wait_durable(self) -> None:
        """Wait until the newest requested snapshot is on disk. At the start that is the first state."""
        assert self._run.wait_asked(SAVED_S_MAX)

    def wait_in_memory(self) -> None:
        """Wait for a snapshot after step 0, so that a kill no longer costs all steps."""
        while not any(slot.step > 0 for slot in scan_slots(self._runtime.connection.paths.shm_dir)):
            time.sleep(0.01)


@contextlib.contextmanager
def training(
    save_s: float = 600.0, arrays: dict[str, np.ndarray] | None = None, on_restored: Callable[[], None] = lambda: None
) -> Iterator[Model]:
    """Train `arrays` from the newest state, with a checkpoint every `save_s` seconds and one at the end."""
    runtime = current()
    assert runtime is not None, "start it with `procsv launch`"
    plan = numpy_plan(runtime.connection.paths.logdir, save_secs=save_s)
    source = NumpyState(initial() if arrays is None else arrays, plan)
    with state_run(runtime, source, plan, on_restored) as run:
        yield Model(runtime, source, run)


def main(steps: int, step_s: float, save_s: float = 0.5) -> None:
    train_until(lambda step: step >= steps, step_s, save_s)


def train_chief(save_s: float = 0.5) -> None:
    """Train in the chief until the logdir has a file `end`. All other tasks just wait."""
    if os.environ["PROCSV_TASK"] != "chief":
        threading.Event().wait()
    train_until(lambda _: Path(os.environ["PROCSV_LOGDIR"], "end").exists(), 0.01, save_s)


def train_in_step(steps: int, gate: int, obey: Callable[[], None] = lambda: None) -> None:
    """Train in one task of a gang, in which all are alike. Wait at step `gate` for a file `open`,
    and print a digest at the end.

    `obey` is called between two steps and while it waits.
    """
    runtime = current()
    assert runtime is not None, "start it with `procsv launch`"
    with runtime.held_run():
        runtime.train_in_step()
        with training(save_s=0.0, on_restored=lambda: _wait_for_all(runtime)) as model:
            while model.step < steps and not model.should_stop():
                model.train()
                time.sleep(0.01)
                obey()
                while model.step == gate and not Path("open").exists() and not model.should_stop():
                    time.sleep(0.02)
                    obey()
    if model.step == steps:
        print("variables", digest(model.arrays), flush=True)


def _wait_for_all(runtime: Runtime) -> None:
    """Wait, as a collective does, until every task of this generation has restored its state. None
    has saved yet.
    """
    config, start = json.loads(os.environ["TF_CONFIG"]), runtime.connection.start
    name = f"begun.{start.run}.{start.incarnation}"
    Path(f"{name}.{config['task']['index']}").touch()
    while not all(Path(f"{name}.{index}").exists() for index in range(len(config["cluster"]["worker"]))):
        if runtime.stops.reason is not None:
            return
        time.sleep(0.01)


def train_replicas(save_s: float = 600.0, step_s: float = 0.0) -> None:
    """Train in the chief, count steps in a worker and serve in a server, until the run asks them to
    end.

    `step_s` is the time that a worker needs to leave its step.
    """
    runtime, role = current(), os.environ["PROCSV_TASK"].partition(".")[0]
    assert runtime is not None, "start it with `procsv launch`"
    if role == "chief":
        train_until(lambda _: Path(os.environ["PROCSV_LOGDIR"], "end").exists(), 0.01, save_s)
        return
    stopped = threading.Event()
    runtime.stops.add_listener(lambda reason: stopped.set())
    runtime.heartbeat.enter_phase(Phase.SERVE if role == "ps" else Phase.PROGRAM)
    if role == "worker":
        begin_steps(runtime)
    stopped.wait()
    time.sleep(step_s if role == "worker" else 0.0)


class _OwnSteps:
    """A training that makes another step whenever it is asked for its step count."""

    is_trained_here = is_in_step = True

    def __init__(self) -> None:
        self._steps = itertools.count(1)

    def count_runs(self) -> int:
        return 0

    def count_steps(self) -> int:
        return next(self._steps)

    def capture_state(self, reason: Reason) -> None: ...
    def visit_soon(self) -> None: ...
    def leave_to_parent(self) -> None: ...


def begin_steps(runtime: Runtime) -> None:
    """Make this a worker in training: it makes another step whenever it is asked for its step count."""
    runtime.heartbeat.count_training(_OwnSteps())
    runtime.heartbeat.enter_phase(Phase.STEP)
    runtime.report_first_step(FirstStepDone(0, "chief", "", 1, runtime.clock.monotonic()))


def train_until(is_over: Callable[[int], bool], step_s: float, save_s: float = 0.5) -> None:
    with training(save_s) as model:
        while not model.should_stop() and not is_over(model.step):
            model.train()
            time.sleep(step_s)
            stand_at(model.step)
    assert IS_FORK or "tensorflow" not in sys.modules, "TensorFlow was imported"
    print("ended with", digest(model.arrays), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *map(float, sys.argv[2:]))
