"""Scenarios of whole runs through the core alone: what happens, what is journaled, how it ends."""

from __future__ import annotations

import random
import signal

import pytest

from procsv.base.identity import CHECKPOINT, SUMMARY, TRAINER
from procsv.base.journal.entries import FitBegun, SnapshotsResumed
from procsv.base.outcome import Exit, LastWords
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.messages import Hello
from procsv.ipc.messaging.watchdog_messages import Finish, FlushDone, Note, TrainerExited
from procsv.watchdog.core.events import NotStarted, Said, TreeGone
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.core.task.lifecycle import TaskState
from tests.support.naming import Naming
from tests.watchdog.world import KILLED, World, running

DONE = Exit(0, None)
BOOM = LastWords("ValueError", "boom", "Traceback …", 840)


def test_services_start_first_and_everything_gets_a_message() -> None:
    world = World()

    assert [(entry.task, entry.incarnation) for entry in world.events("spawned")] == [
        (CHECKPOINT, 1),
        (SUMMARY, 1),
        (TRAINER, 1),
    ]
    assert world.core.state_label == "pending"


def test_complete_training_ends_in_order_with_exit_code_0() -> None:
    world = running()
    world.crash(DONE)

    assert world.exit_code == 0
    assert world.core.state_label == "done"
    assert [type(body) for task, body in world.told if task == CHECKPOINT] == [TrainerExited, Finish]
    assert world.last("run_completed")["step"] == 840
    assert 0 < world.last("run_completed")["goodput"] <= 1
    assert not world.alive


def test_a_killed_trainer_restarts_and_the_services_keep_their_pids() -> None:
    world = running()
    world.memory_step = 838
    world.crash()

    assert world.last("exited")["cause"] == "killed"
    assert world.last("exited")["evidence"] == "SIGKILL, sender unknown"
    assert world.last("exited")["step"] == 840
    assert world.last("restarting")["lost_steps"] == 2
    world.advance(0.001)
    assert world.alive[TRAINER].incarnation == 2
    assert {task: process.incarnation for task, process in world.alive.items()} == {
        CHECKPOINT: 1,
        SUMMARY: 1,
        TRAINER: 2,
    }
    assert (world.core.chief.restarts, world.core.state_label) == (1, "pending")


def test_recovery_is_measured_from_the_death_of_the_old_trainer() -> None:
    world = running()
    world.crash()
    world.advance(2.0)
    world.train(845, restored=838)

    assert world.last("recovered")["step"] == 838
    assert world.last("recovered")["source"] == "checkpoint"
    assert 2.0 < world.last("recovered")["seconds"] < 4.0
    assert len(world.events("ready")) == 2


def test_the_checkpoint_service_learns_of_every_death() -> None:
    world = running()
    for incarnation in (1, 2, 3):
        world.crash()
        assert (CHECKPOINT, TrainerExited(incarnation, clean=False)) in world.told
        world.durable(840 + incarnation)
        world.advance(2.0)
        world.train(850 + incarnation)


def test_a_checkpoint_service_that_dies_before_it_has_settled_learns_of_the_death_again() -> None:
    world = running(answers_settled=False)
    world.crash()
    world.end(CHECKPOINT, KILLED)
    world.advance(0.6)
    world.ready(CHECKPOINT)

    assert [body for task, body in world.told if task == CHECKPOINT] == [TrainerExited(1, clean=False)] * 2


def test_nothing_starts_before_the_old_tree_is_gone() -> None:
    world = running(stubborn=True)
    world.crash()
    world.advance(20.0)
    assert TRAINER not in world.alive
    world.advance(20.0)
    assert world.core.state_label == "unkillable"
    assert any("SIGKILL" in text and "logdir" in text for text in world.said)

    world.stubborn = False
    world.handle(TreeGone(TRAINER, 1))
    world.advance(0.1)
    assert world.alive[TRAINER].incarnation == 2


def test_five_failures_without_progress_give_up_with_70_and_say_why() -> None:
    world = running()
    for _ in range(4):
        world.crash(Exit(3, None))
        world.advance(30.0)
        world.train(840)
    world.crash(Exit(3, None))

    assert world.exit_code == 70
    assert world.last("gave_up")["why"] == Naming("5 failures ")
    assert world.core.state_label == "failed"
    assert len(world.reports) == 5


def test_row_04_a_crash_save_that_is_progress_prevents_giving_up() -> None:
    world = running()
    for n in range(20):
        world.memory_step = 840 + n  # each trainer leaves a newer snapshot, which is saved after its death
        world.crash()
        world.advance(2.0)
        world.train(841 + n)

    assert world.exit_code is None
    assert world.core.chief.history.no_progress_count == 0


def test_the_fifth_failure_waits_for_the_crash_save_before_it_gives_up() -> None:
    world = running()
    for _ in range(4):
        world.crash()
        world.advance(30.0)
        world.train(840)
    world.answers_settled = False
    world.memory_step = 900
    world.crash()
    assert (world.exit_code, world.core.state_label) == (None, "backoff")

    world.durable(900, "crash")
    world.handle(Said(CHECKPOINT, 1, FlushDone(900, ""), TrainerExited(5, clean=False)))
    world.advance(2.0)
    assert world.alive[TRAINER].incarnation == 6


def test_two_exceptions_before_the_first_step_end_the_run_with_the_traceback() -> None:
    world = World().ready()
    for _ in range(2):
        world.handle(Said(TRAINER, world.alive[TRAINER].incarnation, Hello(1)))
        world.crash(Exit(1, None), LastWords("ValueError", "boom", "Traceback …", None))
        world.advance(2.0)

    assert world.exit_code == 70
    assert "ValueError: boom" in world.said[-2] + world.said[-1]


def test_the_next_start_resumes_from_what_an_earlier_launch_left_on_disk() -> None:
    world = World(Settings(saved_step=1620)).ready()
    for _ in range(4):  # by signals, as from a broken library on import: no reason to distrust the disk
        world.handle(Said(TRAINER, world.alive[TRAINER].incarnation, Hello(1)))
        world.crash(Exit(None, signal.SIGSEGV))
        world.advance(20.0)

    assert world.core.chief.durable_step == 1620
    assert all("from step 1620" in text for text in world.said if "starting it again" in text)
    assert (world.reports[-1].resume_step, world.reports[-1].lost_steps) == (1620, 0)
    assert not world.events("state_suspected")
    world.stop()
    world.crash(Exit(75, None))
    assert world.last("stopped")["durable_step"] == 1620


def test_a_deterministic_program_gives_up_after_three() -> None:
    world = running()
    for _ in range(2):
        world.crash(Exit(1, None), BOOM)
        world.advance(10.0)
        world.train(840)
    world.crash(Exit(1, None), BOOM)

    assert world.exit_code == 70
    assert "deterministic" in world.last("gave_up")["why"]


def test_exit_75_restarts_at_once_for_free() -> None:
    world = running()
    world.crash(Exit(75, None))
    world.advance(0.01)

    assert world.alive[TRAINER].incarnation == 2
    assert world.core.chief.history.no_progress_count == 0
    assert not world.reports


# -- news of dead processes ------------------------------------------------------------------------------------
def test_messages_of_an_older_attempt_change_nothing() -> None:
    world = running()
    world.crash()
    world.advance(2.0)
    world.handle(Said(TRAINER, 1, Note(SnapshotsResumed(step=7))))
    world.handle(Said(TRAINER, 1, Hello(1)))

    assert not world.events("snapshots_resumed")
    assert world.core.chief.life.state is TaskState.PENDING


def test_a_note_goes_to_the_journal() -> None:
    world = running()
    world.handle(Said(TRAINER, 1, Note(FitBegun(fit=1, model="m", epochs=2, how="iterator state"))))

    assert world.last("fit_begun") == {"fit": 1, "model": "m", "epochs": 2, "how": "iterator state"}


def test_a_system_that_refuses_to_start_a_trainer_is_not_the_trainers_failure() -> None:
    world = running()
    world.crash()
    world.advance(2.0)
    del world.alive[TRAINER]
    world.handle(NotStarted(TRAINER, 2, "EAGAIN"))
    assert world.core.state_label == "backoff"
    world.advance(2.0)

    assert world.alive[TRAINER].incarnation == 2
    assert world.core.chief.history.no_progress_count == 1


def test_the_budget_is_the_one_given_to_the_launch() -> None:
    world = running(settings=Settings(LaunchSettings(max_failures=1)))
    world.crash()

    assert world.exit_code == 70


# -- all schedules ---------------------------------------------------------------------------------------------
def _something_happens(world: World, rng: random.Random) -> None:
    roles = list(world.alive)
    match rng.randrange(10):
        case 0 | 1 if roles:
            task = rng.choice(roles)
            exit = rng.choice([KILLED, Exit(None, signal.SIGSEGV), Exit(75, None), Exit(1, None), DONE])
            words = LastWords("ValueError", "boom", "Traceback", rng.randrange(3)) if exit.code == 1 else None
            world.end(task, exit, words if task == TRAINER else None)
        case 2:
            world.advance(rng.choice([0.1, 1.0, 20.0, 100.0]))
        case 3 | 4:
            for task in roles:
                if task != TRAINER and not world.alive[task].is_ready:
                    world.ready(task)
                    return
        case 5 | 6 if TRAINER in world.alive:
            world.train(world.core.chief.step + rng.randrange(10), max(0, world.core.chief.durable_step))
        case 7 if CHECKPOINT in world.alive:
            world.durable(world.core.chief.step)
        case 8:
            world.memory_step = world.core.chief.step
        case 9 if rng.random() < 0.05:
            world.stop(now=rng.random() < 0.5)
        case _:
            pass


@pytest.mark.parametrize("block", range(10))
def test_whatever_happens_a_stopped_run_ends_and_leaves_no_process(block: int) -> None:
    """Random schedules that replay from their seed. The world checks that no task ever runs twice."""
    for seed in range(block * 40, block * 40 + 40):
        rng, world = random.Random(seed), World(seed=seed)
        world.answers_settled = rng.random() < 0.8
        for _ in range(80):
            if world.quit is None:
                _something_happens(world, rng)
        if world.quit is None:
            world.stop()
        world.advance(1000.0)
        assert world.quit is not None, f"seed={seed}: {world.core.chief.life.story}"
        assert not world.alive, f"seed={seed}"
        assert world.exit_code in (0, 1, 70, 75)  # 1: of a program that was asked to stop, and failed
        ends = [one for name in ("gave_up", "stopped", "run_completed") for one in world.events(name)]
        assert len(ends) == 1, f"seed={seed}: {ends}"
