"""A program that ended on a full disk waits for room, and that is no failure."""

from __future__ import annotations

import signal

import msgspec
import pytest

from procsv.base.identity import TRAINER
from procsv.base.outcome import Exit, LastWords
from procsv.base.system.processes import ProcessIdentity
from procsv.cli.status import show_status
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.report.status_object import status_of
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.edge.status import Facts, run_file
from tests.support.naming import Naming
from tests.watchdog.world import START, World, running

FULL = LastWords("OSError", "[Errno 28] No space left on device", "", 840, no_room=True)


def full(world: World | None = None) -> World:
    """Return a world whose disk is full and has ended the program."""
    world = running() if world is None else world
    world.disk_has_room = False
    world.crash(Exit(1, None), FULL)
    return world


def said(world: World, text: str) -> int:
    return sum(text in line for line in world.said)


def test_a_program_ended_by_a_full_disk_restarts_when_there_is_room_and_not_before() -> None:
    world = full()
    world.advance(600.0)
    assert TRAINER not in world.alive
    assert world.core.state_label == "backoff"

    world.disk_has_room = True
    world.advance(1.0)
    assert world.alive[TRAINER].incarnation == 2
    assert said(world, " waits for room") == 1
    assert world.core.chief.history.no_progress_count == 0


def test_status_says_that_the_disk_is_full_while_the_run_waits_for_room(capsys: pytest.CaptureFixture[str]) -> None:
    facts, world = Facts(START, ProcessIdentity(1, 0.0, "boot"), 1.0), full()
    for shown in (True, False):
        run = run_file(facts, world.core, world.now_s, 0.0)
        assert run.awaits_room is shown
        show_status(msgspec.to_builtins(status_of(run, running=True, processes=(), snapshots=None)))
        assert ("disk is full" in capsys.readouterr().out) is shown
        world.disk_has_room = True
        world.advance(1.0)


def test_a_full_disk_counts_as_no_failure_however_often_and_is_reported_once() -> None:
    world = running()
    for _ in range(20):
        full(world)
        world.disk_has_room = True
        world.advance(120.0)
        assert TRAINER in world.alive
    assert said(world, " waits for room") == 1
    assert world.exit_code is None


def test_after_an_hour_without_room_the_run_gives_up_and_says_why() -> None:
    world = full()
    world.advance(3599.0)
    assert world.exit_code is None
    world.advance(30.0)
    assert world.exit_code == 70
    assert world.last("gave_up")["why"] == Naming("1 h 0 min (--disk-wait)")


def test_a_program_on_a_full_disk_that_nobody_sees_is_given_up_after_the_same_time() -> None:
    world = running(settings=Settings(LaunchSettings(disk_wait_s=900.0, standby="off")))
    for _ in range(200):
        if world.exit_code is not None:
            break
        if TRAINER in world.alive:
            world.crash(Exit(1, None), FULL)
        world.advance(10.0)
    assert world.exit_code == 70
    assert world.now_s > 900.0


def test_a_new_durable_step_ends_the_hour() -> None:
    world = full()
    world.advance(3000.0)
    world.disk_has_room = True
    world.advance(5.0)
    world.durable(850)
    full(world)
    world.advance(3000.0)
    assert world.exit_code is None


def test_a_run_stopped_while_it_waits_for_room_ends() -> None:
    world = full()
    world.durable(840)
    world.stop()
    world.advance(30.0)
    assert world.exit_code == 75


@pytest.mark.parametrize(
    ("exit", "words", "waits"),
    [
        (Exit(1, None), None, True),
        (Exit(None, signal.SIGBUS), None, True),  # a mapped file without room
        (Exit(None, signal.SIGKILL), None, False),  # killed from outside: it resumes from memory
        (Exit(78, None), None, None),  # says itself that a restart is useless
    ],
)
def test_any_failure_while_the_disk_is_full_waits_for_room(
    exit: Exit, words: LastWords | None, waits: bool | None
) -> None:
    world = running()
    world.disk_has_room = False
    world.crash(exit, words)
    world.advance(60.0)

    if waits is None:
        assert world.exit_code == 70
        return
    assert (TRAINER in world.alive) is not waits
    assert world.core.chief.history.no_progress_count == 0
