"""A training run of any source of state, for a program that trains without a Supervisor or a monitored session.

with state_run(runtime, source, plan) as training:
    while not training.should_stop and training.read_step() < steps:
        training.boundary.pass_call(step)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from procsv.ipc.messaging.messages import CheckpointPlan
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.runtime.context import Runtime
from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.restore_client import introduce_plan, restore_newest
from procsv.training.snapshots.source import StateSource
from procsv.training.snapshots.training_run import SaveSetup, TrainingRun


@contextlib.contextmanager
def state_run(
    runtime: Runtime, source: StateSource, plan: CheckpointPlan, snapshot_s: float | None = None
) -> Iterator[TrainingRun]:
    """Trains `source` within the block, on this thread, from the newest state there is; its last state is saved.

    `snapshot_s`: seconds between snapshots; None is auto.  An exception in the block leaves the newest snapshot: the
    step under way may have changed half of the state.
    """
    runtime.acquire_run()
    try:
        introduce_plan(runtime, plan)
        runtime.talk()
        origin = restore_newest(runtime, source)
        setup = SaveSetup(True, Cadence(snapshot_s, plan.save_secs), lambda news: None)
        training = TrainingRun(runtime, source, origin, setup)
        training.start_training()
        try:
            training.take_first()
            assert training.snapshots is not None
            training.snapshots.start_cadence()
            yield training
            training.save(runtime.stop_reason or "final", training.final_save_s())
        finally:
            training.end_training()
    finally:
        runtime.phase = Phase.IDLE
        runtime.release_run()
