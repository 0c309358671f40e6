"""A run whose logdir another machine takes ends at once, with a message and without a save."""

from __future__ import annotations

import signal

from procsv.base.identity import SUMMARY, TRAINER
from procsv.base.outcome import Exit
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.watchdog_messages import StopTraining
from procsv.watchdog.core.events import LogdirTaken
from procsv.watchdog.core.settings import Settings
from tests.watchdog.world import World


def test_the_trainer_is_killed_and_the_run_ends_with_70_naming_the_new_holder() -> None:
    world = World().ready().train(7)
    world.memory_step, world.settle_error = 6, "node17 has it"
    world.handle(LogdirTaken("process 12 on node17 (procsv launch)"))

    assert (TRAINER, signal.SIGKILL) in world.signals
    assert (TRAINER, signal.SIGTERM) not in world.signals
    assert world.exit_code == 70
    assert world.quit is not None
    assert not world.quit.keep_memory, (
        "what the other machine has not seen would be restored beside what it has done since"
    )
    assert sum("process 12 on node17 (procsv launch)" in text for text in world.said) == 1
    assert not world.alive


def test_the_loss_is_reported_once_however_often_it_is_seen() -> None:
    world = World(Settings(LaunchSettings(), observes=True)).ready().train(7)
    for _ in range(3):
        world.handle(LogdirTaken("node17"))
    assert sum("node17" in text for text in world.said) == 1


def test_a_delay_before_a_restart_is_cut_short() -> None:
    world = World(Settings(LaunchSettings(standby="off"))).ready().train(7)
    world.crash()
    world.handle(LogdirTaken("node17"))
    world.advance(60.0)
    assert world.exit_code == 70
    assert TRAINER not in world.alive


def test_a_program_that_is_only_observed_is_asked_to_stop_and_never_killed() -> None:
    world = World(Settings(LaunchSettings(), observes=True)).ready().train(7)
    world.handle(LogdirTaken("node17"))

    assert any(isinstance(body, StopTraining) for task, body in world.told if task == TRAINER)
    assert not [number for task, number in world.signals if task == TRAINER]
    assert SUMMARY in world.alive
    world.end(TRAINER, Exit(0, None))
    assert world.exit_code == 70
