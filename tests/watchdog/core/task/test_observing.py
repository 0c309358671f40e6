"""The watchdog of a program that it did not start records and reports, but neither ends nor restarts it."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from procsv.base.identity import CHECKPOINT, SUMMARY, TRAINER
from procsv.base.outcome import Exit, LastWords
from procsv.base.service_table import SERVICES
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.watchdog_messages import ServiceLost, StopTraining
from procsv.watchdog.core.events import RecycleAsked
from procsv.watchdog.core.settings import Settings
from tests.support.naming import Naming
from tests.watchdog.world import World

UNKNOWN = Exit(None, None)


def an_observer(launch: LaunchSettings | None = None) -> World:
    return World(Settings(launch or LaunchSettings(hang_timeout_s=5.0), observes=True)).ready()


def an_end(world: World) -> dict[str, Any]:
    """Return the journal's entry about the program's end."""
    return next(entry.entry.fields() for entry in world.events("exited") if entry.task == TRAINER)


def test_a_session_that_ends_completes_the_run() -> None:
    world = an_observer().train(7)
    world.end(TRAINER, Exit(0, None))

    assert world.exit_code == 0
    assert world.last("run_completed")["step"] == 7
    assert not world.alive


@pytest.mark.parametrize("code", [75, 130])
def test_a_program_that_ends_by_an_interrupt_or_with_its_state_saved_is_stopped_and_can_resume(code: int) -> None:
    world = an_observer().train(7)
    world.end(TRAINER, Exit(code, None))

    assert world.exit_code == 75
    assert world.last("stopped")["source"] == "the program itself"
    assert not world.events("gave_up")


def test_a_program_that_is_killed_leaves_its_snapshot_and_an_unknown_cause_and_is_not_restarted() -> None:
    world = an_observer().train(7)
    world.memory_step = 6
    world.crash(UNKNOWN)

    assert (world.exit_code, world.last("checkpoint_durable")["step"]) == (70, 6)
    assert (an_end(world)["cause"], an_end(world)["evidence"]) == ("unknown", Naming("unknown exit"))
    assert world.reports[0].resume_step == 6
    assert not world.events("restarting")
    assert world.last("gave_up")["why"].endswith("it resumes")
    assert any("exit status, at step 7" in text for text in world.said)


def test_a_program_killed_before_anything_was_saved_gets_no_promise_to_resume() -> None:
    world = an_observer()
    world.crash(UNKNOWN)

    assert world.last("gave_up")["why"].endswith("start it yourself")


def test_faulthandlers_output_is_the_cause_of_an_end_without_a_status() -> None:
    world = an_observer().train(7)
    world.stacks = (
        "Fatal Python error: Segmentation fault\n\n"
        'Current thread 0x1 (most recent call first):\n  File "/home/me/train.py", line 3 in step\n'
    )
    world.crash(UNKNOWN)

    assert an_end(world)["cause"] == "crashed"
    assert "step (/home/me/train.py:3)" in an_end(world)["evidence"]


def test_an_exception_is_recorded_but_not_repeated_on_the_terminal_that_has_shown_it() -> None:
    world = an_observer().train(7)
    words = LastWords("ValueError", "no such thing", "Traceback ...", 7)
    world.crash(Exit(1, None), words)

    assert (world.exit_code, an_end(world)["cause"]) == (70, "exception")
    assert world.reports[0].ended.words == words
    assert not [text for text in world.said if "ValueError" in text]


def test_a_hang_is_reported_once_and_the_program_gets_no_signal() -> None:
    world = an_observer().train(7)
    world.advance(60.0)

    assert len(world.events("hang_detected")) == 1
    assert world.last("hang_detected")["step"] == 7
    assert world.core.state_label == "hung"
    assert any("not end it" in text for text in world.said)
    assert not [number for task, number in world.signals if task == TRAINER]


def test_a_program_that_hung_and_continues_is_running_again_and_may_hang_again() -> None:
    world = an_observer().train(7)
    world.advance(60.0)
    world.step(8)

    assert world.core.state_label == "running"
    assert world.last("hang_over")["seconds"] == pytest.approx(60.0, abs=2.0)
    world.advance(60.0)
    assert [entry.entry.fields()["step"] for entry in world.events("hang_detected")] == [7, 8]


def test_a_stop_is_a_message_and_never_a_signal_however_long_the_program_takes() -> None:
    world = an_observer().train(7)
    world.stop(source="procsv stop")
    world.advance(120.0)

    assert any(isinstance(body, StopTraining) for task, body in world.told if task == TRAINER)
    assert not [number for task, number in world.signals if task == TRAINER]
    assert sum("procsv stop --now" in text for text in world.said) == 1
    world.end(TRAINER, Exit(0, None))
    assert (world.exit_code, world.last("stopped")["source"]) == (75, "procsv stop")


def test_a_program_that_hangs_is_still_asked_to_stop() -> None:
    world = an_observer().train(7)
    world.advance(60.0)
    world.stop(source="procsv stop")

    assert any(isinstance(body, StopTraining) for task, body in world.told if task == TRAINER)
    assert TRAINER in world.alive


def test_a_stop_now_kills_the_program() -> None:
    world = an_observer().train(7)
    world.stop(now=True, source="procsv stop")

    assert (TRAINER, signal.SIGKILL) in world.signals
    assert world.exit_code == 75


def test_nothing_asks_the_program_to_end_for_a_restart() -> None:
    world = an_observer().train(7)
    world.handle(RecycleAsked("procsv restart", by_hand=True))

    assert world.core.state_label == "running"
    assert not [body for task, body in world.told if task == TRAINER]


def test_a_lost_service_is_reported_to_the_program_and_it_goes_on() -> None:
    world = an_observer(LaunchSettings(hang_timeout_s=600.0, service_failures=2)).train(7)
    for _ in range(2):
        world.end(SUMMARY, Exit(1, None))
        world.advance(5.0)

    lost = [body for task, body in world.told if isinstance(body, ServiceLost)]
    assert [body.service for body in lost] == [SUMMARY]
    assert TRAINER in world.alive
    assert world.core.state_label == "running"
    world.end(TRAINER, Exit(0, None))
    assert world.exit_code == 0


def test_a_run_without_a_checkpoint_service_ends_with_its_program() -> None:
    settings = Settings(observes=True, services={SUMMARY: SERVICES[SUMMARY]})
    world = World(settings).ready(SUMMARY).train(7)

    assert CHECKPOINT not in world.alive
    world.end(TRAINER, Exit(0, None))
    assert world.exit_code == 0
