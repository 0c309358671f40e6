"""A stop of a whole run asks and kills the right processes and ends with the right code."""

from __future__ import annotations

import signal

import pytest

from procsv.base.identity import CHECKPOINT, TRAINER
from procsv.base.outcome import Exit, Source
from procsv.ipc.messaging.messages import Hello
from procsv.ipc.messaging.watchdog_messages import StopTraining, TrainerExited
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.events import PreemptAsked, Said, SignalCame
from tests.watchdog.world import World, running

DONE = Exit(0, None)


def test_a_stop_asks_waits_and_ends_with_75() -> None:
    world = running()
    world.durable(840)
    world.stop()

    assert world.core.state_label == "stopping"
    assert [body for task, body in world.told if task == TRAINER] == [StopTraining(17.0, "final", ends_run=True)]
    assert [number for task, number in world.signals if task == TRAINER] == [signal.SIGTERM, signal.SIGCONT]
    world.advance(3.0)
    world.crash(Exit(75, None))
    assert world.exit_code == 75
    assert world.last("exited")["cause"] in ("stopped", "completed")
    assert world.last("stopped")["step"] == 840
    assert (CHECKPOINT, TrainerExited(1, clean=True)) in world.told


def test_a_trainer_that_does_not_stop_is_killed_after_its_share_of_the_grace() -> None:
    world = running()
    world.durable(840)
    world.stop()
    world.advance(16.9)
    assert TRAINER in world.alive
    world.advance(0.2)

    assert world.exit_code == 75
    trainers = [entry.entry.fields() for entry in world.events("exited") if entry.task == TRAINER]
    assert trainers[0]["cause"] == "stopped"
    assert " 25 s" in trainers[0]["evidence"]


def test_a_second_signal_kills_at_once() -> None:
    world = running()
    world.durable(840)
    world.stop(source="SIGINT")
    world.advance(0.2)
    world.stop(now=True, source="SIGINT")

    assert (TRAINER, signal.SIGKILL) in world.signals
    assert world.exit_code == 75


def test_repeating_a_stop_request_changes_nothing() -> None:
    world = running()
    world.stop(source="procsv stop")
    world.stop(source="procsv stop")

    assert [number for task, number in world.signals if task == TRAINER] == [signal.SIGTERM, signal.SIGCONT]
    assert TRAINER in world.alive


def test_row_28_a_stop_during_back_off_ends_down_and_nothing_restarts() -> None:
    world = running()
    world.durable(840)
    for _ in range(2):  # the second one has a delay
        world.crash()
        world.advance(0.001)
    assert world.core.state_label == "backoff"
    world.stop()

    assert world.exit_code == 75
    assert TRAINER not in world.alive


def test_a_stop_before_hello_reaches_the_trainer_once_it_can_receive_it() -> None:
    world = World().ready()
    world.stop()
    world.handle(Said(TRAINER, 1, Hello(1)))

    assert [body for task, body in world.told if task == TRAINER] == [StopTraining(17.0, "final", ends_run=True)] * 2
    assert world.signals.count((TRAINER, signal.SIGTERM)) == 1


def test_a_stop_whose_state_cannot_be_saved_ends_with_70_and_keeps_the_memory() -> None:
    world = running(settle_error="disk is full")
    world.stop()
    world.crash(Exit(75, None))

    assert world.exit_code == 70
    assert world.quit is not None
    assert world.quit.keep_memory
    assert any("disk is full" in text for text in world.said)


def test_services_that_do_not_finish_in_time_are_killed() -> None:
    world = running(answers_settled=False)
    world.stop()
    world.crash(Exit(75, None))
    world.advance(30.0)

    assert world.exit_code == 70  # it is unknown whether the newest state is on disk
    assert not world.alive


def test_a_stop_before_anything_is_ready_does_not_wait_for_services_with_nothing_to_save() -> None:
    world = World()
    world.stop()
    world.crash(Exit(None, signal.SIGTERM))

    assert world.exit_code == 70
    assert world.core.state_label == "stopped"
    assert any("nothing was saved" in text for text in world.said)


@pytest.mark.parametrize(
    ("exit", "handles", "code"),
    [
        (Exit(130, None), 0, 130),  # interrupted, as by Ctrl-C
        (Exit(0, None), 0, 0),  # it caught the interrupt
        (Exit(75, None), 0, 70),  # ended by the bootstrap: nothing was saved
        (Exit(0, None), 1 << signal.SIGTERM, 0),  # its own handler has run
        (Exit(75, None), 1 << signal.SIGTERM, 75),
        (Exit(3, None), 1 << signal.SIGTERM, 3),
    ],
)
def test_a_stopped_program_with_nothing_saved_ends_with_its_own_code(exit: Exit, handles: int, code: int) -> None:
    world = World().ready()
    world.alive[TRAINER].beat = Heartbeat(Phase.IMPORT, -1, 0, world.now_s, 0.0, handles=handles)
    world.advance(1.0)
    world.stop()
    world.crash(exit)
    world.advance(30.0)

    assert world.exit_code == code
    assert world.core.state_label == "stopped"
    assert not world.events("run_completed")
    assert [one.entry.fields()["cause"] for one in world.events("exited") if one.task == TRAINER] == ["stopped"]


def test_a_program_that_answers_a_stop_with_its_own_handler_and_returns_is_stopped_and_not_complete() -> None:
    world = running()
    world.durable(42)
    beat = Heartbeat(Phase.IDLE, 42, 0, world.now_s, 0.0, returned=0, handles=1 << signal.SIGTERM)
    world.alive[TRAINER].beat = beat
    world.stop()
    world.crash(DONE)

    assert (world.exit_code, world.core.state_label) == (75, "stopped")


def test_a_program_with_its_own_handler_that_ends_for_a_restart_is_not_complete() -> None:
    for code in (0, 3):
        world = World().ready()
        world.alive[TRAINER].beat = Heartbeat(Phase.IMPORT, -1, 0, world.now_s, 0.0, handles=1 << signal.SIGTERM)
        world.advance(1.0)
        world.handle(PreemptAsked(30.0, "procsv preempt"))
        world.crash(Exit(code, None))
        world.advance(1.0)

        assert world.alive[TRAINER].incarnation == 2
        assert world.core.chief.history.no_progress_count == 0


def test_a_run_whose_program_deletes_its_checkpoints_does_not_promise_to_resume() -> None:
    world = running()
    world.durable(840)
    world.core.chief.deletes_logdir = True
    world.stop()
    world.crash(Exit(75, None))

    assert world.exit_code == 70


@pytest.mark.parametrize(("source", "code"), [("chief", 75), ("alive", 75), ("fresh", 70)])
def test_a_task_whose_state_is_kept_elsewhere_resumes_although_it_has_saved_nothing(source: Source, code: int) -> None:
    world = World().ready().train(5, source=source)
    world.stop()
    world.crash(Exit(75, None))
    world.advance(30.0)

    assert world.exit_code == code


@pytest.mark.parametrize(
    ("step", "reason", "code"),
    [(0, "start", 70), (0, "final", 70), (1, "final", 75), (0, "manual", 75)],  # a program may save and count no steps
)
def test_a_run_that_has_saved_only_its_start_has_saved_nothing(step: int, reason: str, code: int) -> None:
    world = World().ready().train(0)
    world.durable(step, reason)
    world.stop()
    world.crash(Exit(75, None))
    world.advance(30.0)

    assert world.exit_code == code
    why = "only the state"
    assert any(why in text for text in world.said) is (code == 70)


def test_a_worker_that_is_stopped_while_it_waits_for_its_chief_ends_as_if_it_had_reached_it() -> None:
    world = World().ready()
    world.alive[TRAINER].beat = Heartbeat(Phase.CONNECT, -1, 0, world.now_s, world.now_s + 7200.0)
    world.advance(1.0)
    world.stop()
    world.crash(Exit(75, None))
    world.advance(30.0)

    assert world.exit_code == 75


def test_a_server_that_has_saved_nothing_resumes_because_its_chief_refills_it() -> None:
    world = World().ready()
    world.alive[TRAINER].beat = Heartbeat(Phase.SERVE, -1, 0, world.now_s, 0.0)
    world.advance(1.0)
    world.stop()
    world.crash(Exit(75, None))
    world.advance(30.0)

    assert world.exit_code == 75


def test_repeated_key_presses_after_the_end_do_not_matter() -> None:
    world = running(answers_settled=False)
    world.crash(DONE)
    world.stop()
    world.stop(now=True)
    world.advance(30.0)

    assert world.exit_code == 70
    assert world.quit is not None
    assert world.quit.keep_memory


@pytest.mark.parametrize("is_stopping", [False, True])
def test_a_closed_terminal_which_sends_its_signal_twice_hurries_nothing(is_stopping: bool) -> None:
    world = running()
    world.durable(840)
    if is_stopping:
        world.stop()
    for _ in range(2):
        world.handle(SignalCame(signal.SIGHUP))
    assert world.core.state_label == "stopping"
    assert (TRAINER, signal.SIGKILL) not in world.signals

    world.handle(SignalCame(signal.SIGQUIT))
    assert (TRAINER, signal.SIGKILL) in world.signals
