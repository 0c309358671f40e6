"""The service as a real process: a snapshot in a slot becomes a checkpoint, whatever is killed meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from procsv.ipc.messages import Finish, Restore, Restored, RestoreFrom, Snapshot, TrainerEnded

pytestmark = pytest.mark.fault


def test_a_snapshot_becomes_a_checkpoint_that_a_new_trainer_is_pointed_to(run: Any, plan: Any, publish: Any) -> None:
    run.start_service()
    trainer = run.trainer(plan=plan())
    fresh = trainer.ask(Restore(False))
    assert RestoreFrom("fresh", "", -1, 0, (), "") == fresh
    trainer.ask_ack(Restored("fresh", "", 0))
    info = publish(run.arena(), plan(), {"x": np.ones(10, np.float32)}, 1, 7)
    durable = trainer.ask(Snapshot(str(info.path), 1, 7, "manual"))
    assert durable.path == str(run.logdir / "model.ckpt-7")
    print(durable)
    again = trainer.ask(Restore(True))
    assert ("checkpoint", durable.path, 7) == (again.source, again.path, again.step)
    memory = trainer.ask(Restore(False))
    assert ("memory", str(info.path)) == (memory.source, memory.path)
    watchdog = run.watchdog()
    assert watchdog.ask(TrainerEnded(1, True)).step == 7
    assert watchdog.ask(Finish()).step == 7
    assert run.wait_ended(run.services[0]).code == 0
    print(run.log())
