"""Deaths and news of a run's services, through the whole core."""

from __future__ import annotations

import signal

import pytest

from procsv.base.identity import CHECKPOINT, SUMMARY, TRAINER, TaskId
from procsv.base.outcome import Exit
from procsv.ipc.messaging.checkpoint_messages import SaveFailed
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.events import Said
from procsv.watchdog.core.services import ServiceState
from tests.watchdog.world import KILLED, World, running


@pytest.mark.parametrize("task", [CHECKPOINT, SUMMARY])
def test_a_service_killed_while_idle_comes_back_at_once_however_often(task: TaskId) -> None:
    world = running()
    for incarnation in range(2, 30):
        world.end(task, KILLED)
        assert world.alive[task].incarnation == incarnation
        world.ready(task)

    assert world.alive[TRAINER].incarnation == 1
    assert len(world.events("service_restarted")) == 28


def test_a_service_that_never_starts_fails_the_run_with_a_message() -> None:
    world = World().ready(SUMMARY)
    for _ in range(5):
        world.end(CHECKPOINT, Exit(1, None))
        world.advance(30.0)

    assert world.core.services[CHECKPOINT].state is ServiceState.LOST
    assert any("checkpoint service failed 5 times" in text for text in world.said)
    world.advance(30.0)
    assert world.exit_code == 70
    assert "checkpoint service failed" in world.last("gave_up")["why"]


def test_a_checkpoint_service_may_be_killed_ten_times_while_it_starts() -> None:
    world = running()
    for _ in range(10):
        world.end(CHECKPOINT, KILLED)
        world.advance(0.2)

    world.ready(CHECKPOINT)
    assert world.alive[TRAINER].incarnation == 1
    assert not world.core.is_ending


def test_deaths_during_a_save_count_until_one_completes() -> None:
    world = running()
    for n in range(4):
        world.alive[CHECKPOINT].beat = Heartbeat(Phase.SAVE, 1, 0, 0.0, 0.0)
        world.end(CHECKPOINT, Exit(None, signal.SIGSEGV))
        world.advance(10.0)
        world.ready(CHECKPOINT)
        assert world.core.services[CHECKPOINT].state is ServiceState.SERVING, n
    world.durable(1000)
    world.alive[CHECKPOINT].beat = Heartbeat(Phase.SAVE, 1, 0, 0.0, 0.0)
    world.end(CHECKPOINT, Exit(None, signal.SIGSEGV))

    assert world.exit_code is None
    assert world.core.services[CHECKPOINT].state is not ServiceState.LOST


def test_news_of_the_checkpoint_service_is_journaled_once() -> None:
    world = running()
    world.durable(100)
    world.sequence -= 1
    world.durable(100)
    for _ in range(3):
        world.handle(Said(CHECKPOINT, 1, SaveFailed(9, 200, "disk full")))

    assert len(world.events("checkpoint_durable")) == 1
    assert world.last("checkpoint_durable")["path"] == "/l/model.ckpt-100"
    assert len(world.events("checkpoint_failed")) == 1
    assert world.core.chief.durable_step == 100
