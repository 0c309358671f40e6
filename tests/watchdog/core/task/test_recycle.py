"""Planned restarts, suspect states and refused spawns, through the whole core."""

from __future__ import annotations

import signal

import pytest

from procsv.base.identity import CHECKPOINT, TRAINER
from procsv.base.journal.entries import PreemptNotice
from procsv.base.outcome import NO_STEP, Exit, LastWords
from procsv.ipc.messaging.watchdog_messages import Note, StopTraining, TrainerExited
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.events import NotStarted, RecycleAsked
from tests.support.naming import Naming
from tests.watchdog.world import KILLED, World

SAVED = Exit(75, None)
BOOM = LastWords("ValueError", "boom", "Traceback …", 840)


def running(step: int = 840, **changes: object) -> World:
    return World(**changes).ready().train(step)  # type: ignore[arg-type]


def by_hand(world: World) -> None:
    world.handle(RecycleAsked("procsv restart", by_hand=True))


def test_a_manual_restart_saves_ends_and_starts_again_at_once_for_free() -> None:
    world = running()
    by_hand(world)
    assert world.core.state_label == "recycling"
    assert [body for task, body in world.told if task == TRAINER] == [StopTraining(17.0, "manual")]
    assert world.signals == [(TRAINER, signal.SIGTERM), (TRAINER, signal.SIGCONT)]
    world.crash(SAVED)
    world.advance(0.01)

    assert world.alive[TRAINER].incarnation == 2
    assert world.last("exited")["cause"] == "stopped"
    assert (world.last("restarting")["delay"], world.last("restarting")["why"]) == (0.0, "procsv restart")
    assert not world.reports
    assert world.core.chief.history.no_progress_count == 0


def test_a_program_that_returned_on_request_is_stopped() -> None:
    world = running()
    by_hand(world)
    world.alive[TRAINER].beat = Heartbeat(Phase.IDLE, 840, 0, world.now_s, 0.0, returned=75)
    world.crash(SAVED)

    assert world.last("exited")["cause"] == "stopped"


def test_a_manual_restart_during_back_off_starts_at_once() -> None:
    world = running()
    for _ in range(3):
        world.crash()
        world.advance(30.0)
        world.train(840)
    world.crash()
    assert TRAINER not in world.alive
    by_hand(world)
    world.advance(0.01)

    assert world.alive[TRAINER].incarnation == 5
    assert world.core.chief.history.no_progress_count == 0


def test_a_trainer_that_does_not_end_for_its_restart_is_killed_and_restarted() -> None:
    world = running()
    by_hand(world)
    world.advance(17.5)

    assert (TRAINER, signal.SIGKILL) in world.signals
    world.advance(0.1)
    assert world.alive[TRAINER].incarnation == 2
    assert world.core.chief.history.no_progress_count == 0


def test_a_trainer_that_crashes_while_ending_is_judged_by_the_restart_rules() -> None:
    world = running()
    by_hand(world)
    world.crash(Exit(1, None), BOOM)

    assert world.core.chief.history.no_progress_count == 1
    assert world.last("exited")["cause"] == "exception"


def test_a_stop_during_a_restart_ends_the_run() -> None:
    world = running()
    world.durable(840)
    by_hand(world)
    world.stop()
    world.crash(SAVED)

    assert world.exit_code == 75


def test_a_program_that_completes_while_ending_is_complete() -> None:
    world = running()
    by_hand(world)
    world.alive[TRAINER].beat = Heartbeat(Phase.IDLE, 840, 0, world.now_s, 0.0, returned=0)
    world.crash(Exit(0, None))

    assert world.exit_code == 0


def test_a_program_that_ends_with_os_exit_when_asked_to_is_started_again() -> None:
    world = running()
    by_hand(world)
    world.crash(Exit(0, None))
    world.advance(0.01)

    assert world.alive[TRAINER].incarnation == 2
    assert world.last("exited")["cause"] == "stopped"


def test_a_program_that_ends_with_os_exit_after_a_signal_of_its_own_is_started_again() -> None:
    world = running()
    world.receive(TRAINER, Note(PreemptNotice(grace=25.0, source="SIGTERM to the trainer")))
    world.turn()
    world.crash(Exit(0, None))
    world.advance(0.01)
    assert world.alive[TRAINER].incarnation == 2
    assert world.core.chief.history.no_progress_count == 0

    world.train(850)
    world.crash(Exit(0, None))
    assert world.exit_code == 0, "nobody has asked the second attempt to end"


def test_a_state_is_not_blamed_for_crashes_after_a_snapshot_that_was_lost_with_its_memory() -> None:
    world = World().ready().train(840)
    world.durable(840)
    for _ in range(3):
        world.crash(Exit(None, signal.SIGSEGV))
        world.advance(120.0)
        world.memory_step = 860
        world.train(870, restored=840)
        world.memory_step = NO_STEP
    assert not world.events("state_suspected")


def test_a_state_that_was_resumed_and_crashed_twice_is_left_for_the_one_before() -> None:
    world = running()
    world.durable(840)
    world.crash(Exit(None, signal.SIGSEGV))
    for _ in range(2):
        world.advance(30.0)
        world.train(840, restored=840)
        world.crash(Exit(None, signal.SIGSEGV))

    ended = [body for task, body in world.told if task == CHECKPOINT and isinstance(body, TrainerExited)]
    assert [body.avoid_step for body in ended] == [-1, -1, 840]
    assert not any(body.clean for body in ended)
    assert world.last("state_suspected")["step"] == 840
    before = world.reports[-1].resumes
    assert "before step 840" in before
    assert before in world.said[-1]
    assert [report.resume_step for report in world.reports] == [840, 840, -1]
    assert world.reports[-1].lost == "at least 0 steps"


@pytest.mark.parametrize(
    ("restored", "told"),
    [
        (700, Naming("140 steps redone; ", "step 840 to step 700")),
        (0, Naming("840 steps redone; ", "step 840 to step 0, ")),
        (840, Naming("no step redone; ", "before step 840, ")),
    ],
)
def test_the_fate_of_a_suspect_state_is_reported_with_the_step_that_was_really_resumed(
    restored: int, told: Naming
) -> None:
    world = running()
    world.durable(840)
    world.crash(Exit(None, signal.SIGSEGV))
    for _ in range(2):
        world.advance(30.0)
        world.train(840, restored=840)
        world.crash(Exit(None, signal.SIGSEGV))
    world.advance(30.0)
    world.train(restored + 1, restored=restored)
    assert world.said[-1] == told

    world.crash(Exit(None, signal.SIGKILL))
    assert "before step" not in world.said[-1], "what the service avoids, it avoids once"
    world.advance(30.0)
    world.train(841, restored=840)
    assert "went back" not in world.said[-1]


def test_row_34_a_spawn_refused_by_the_system_is_retried_and_charged_to_nobody() -> None:
    world = running(refuses_spawns=True)
    world.crash()
    charged = world.core.chief.history.no_progress_count
    world.advance(300.0)
    assert world.refused > 20
    assert world.core.chief.history.no_progress_count == charged
    assert any("too many open files" in text for text in world.said)

    world.refuses_spawns = False
    world.advance(80.0)
    assert world.alive[TRAINER].incarnation == 2


def test_row_34_a_service_that_the_system_refuses_to_start_is_retried_forever() -> None:
    world = running()
    world.end(CHECKPOINT, KILLED)
    service = world.core.services[CHECKPOINT]
    for _ in range(50):
        world.alive.pop(CHECKPOINT, None)
        world.handle(NotStarted(CHECKPOINT, service.incarnation, "too many open files"))
        world.advance(1.1)

    assert world.exit_code is None
    assert not service.is_over
