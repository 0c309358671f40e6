"""A standby may precede the first trainer if an earlier launch of the same command has left its list of imports."""

from __future__ import annotations

from typing import Literal

import pytest

from procsv.base.identity import STANDBY, TRAINER
from procsv.base.signals import HURRY_SIGNAL
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.watchdog.core.settings import Settings
from tests.watchdog.world import KILLED, World


def known(mode: Literal["warm", "hot", "off"] = "warm", room_bytes: int = 2**40) -> World:
    return World(Settings(LaunchSettings(standby=mode), knows_imports=True), room_bytes=room_bytes)


def test_the_first_trainer_is_forked_from_the_standby_as_soon_as_it_has_imported() -> None:
    world = known()
    assert TRAINER not in world.alive
    assert (world.alive[STANDBY].incarnation, world.core.state_label) == (1, "importing")
    world.advance(29.0)
    assert TRAINER not in world.alive
    world.wait()
    assert world.alive[TRAINER].incarnation == 1
    assert [entry.entry.fields()["pid"] for entry in world.events("promoted")] == [world.alive[TRAINER].pid]
    assert [entry.incarnation for entry in world.events("spawned") if entry.task == TRAINER] == [1]
    world.ready().train(7)
    assert world.core.chief.restarts == 0
    world.crash()
    assert world.alive[TRAINER].incarnation == 2
    assert not [entry for entry in world.events("spawned") if entry.task == STANDBY][1:], "one serves them all"


def test_the_standby_is_waited_for_as_long_as_an_import_may_take_and_no_longer() -> None:
    world = known()
    world.advance(299.9)
    assert TRAINER not in world.alive
    world.advance(0.2)
    assert not world.events("promoted")
    assert world.alive[TRAINER].incarnation == 1


def test_a_standby_that_dies_is_followed_by_a_cold_start_at_once_and_by_another_only_once_that_trains() -> None:
    world = known()
    world.end(STANDBY, KILLED)
    assert world.alive[TRAINER].incarnation == 1
    assert world.core.chief.history.no_progress_count == 0, "nobody's failure"
    world.ready().train(7)
    world.advance(60.0)
    assert STANDBY not in world.alive
    world.loaded()
    assert world.alive[STANDBY].incarnation == 2


@pytest.mark.parametrize(("mode", "room_bytes"), [("warm", 2**29), ("hot", 2**40), ("off", 2**40)])
def test_without_memory_or_with_another_kind_of_standby_the_trainer_starts_at_once(
    mode: Literal["warm", "hot", "off"], room_bytes: int
) -> None:
    world = known(mode, room_bytes)
    assert world.alive[TRAINER].incarnation == 1
    assert STANDBY not in world.alive


def test_a_run_that_is_stopped_meanwhile_ends_without_a_trainer() -> None:
    world = known()
    world.ready().stop()
    world.advance(5.0)
    assert not world.alive
    assert world.exit_code == 70  # nothing was saved
    assert not [entry for entry in world.events("spawned") if entry.task == TRAINER]


def test_the_waiting_standby_also_imports_what_the_trainer_imports_after_the_fork() -> None:
    world = known().wait()
    world.ready().train(7)
    assert world.told_more == 0
    world.loaded()
    assert (world.told_more, world.standby.is_ready) == (1, True)
    world.imports_slowly = True
    world.loaded()
    assert (world.told_more, world.standby.is_ready) == (2, False)
    world.loaded()
    world.crash()
    assert TRAINER not in world.alive, "it is nearly there"
    world.wait()
    assert world.told_more == 3, "what it was told while it imported"
    assert TRAINER not in world.alive
    world.wait()
    assert world.alive[TRAINER].incarnation == 2
    assert len(world.events("promoted")) == 2
    assert len(world.events("standby_ready")) == 1


def test_a_standby_that_dies_during_further_imports_is_replaced() -> None:
    world = known().wait()
    world.ready().train(7)
    world.imports_slowly = True
    world.loaded()
    world.end(STANDBY, KILLED)
    world.advance(2.0)
    assert world.alive[STANDBY].incarnation == 2
    world.wait()
    assert len(world.events("standby_ready")) == 2


def test_a_standby_that_imports_beside_the_training_learns_when_a_dead_trainer_waits_for_it() -> None:
    world = World(Settings(LaunchSettings(standby="warm")), room_bytes=2**40)
    world.ready().train(7).loaded()
    assert world.alive[STANDBY].incarnation == 1
    assert (STANDBY, HURRY_SIGNAL) not in world.signals
    world.crash()
    world.advance(1.0)
    assert TRAINER not in world.alive
    assert (STANDBY, HURRY_SIGNAL) in world.signals
    world.wait()
    assert world.alive[TRAINER].incarnation == 2
