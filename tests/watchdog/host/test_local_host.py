"""A start on one machine waits for an almost ready standby unless it is withdrawn, and is answered once."""

from __future__ import annotations

import signal

from procsv.base.identity import STANDBY, TaskId
from procsv.base.journal.entries import Promoted
from procsv.base.outcome import Exit
from procsv.base.signals import HURRY_SIGNAL
from procsv.ipc.messaging.fd_messages import Waiting
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.watchdog.core.events import Ended, Event, NotStarted, Preparing, Started
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.host import standby
from procsv.watchdog.host.standby import WAIT_S_MAX, StandbySaid
from tests.watchdog.world import KILLED, World

WORKER, OTHER = TaskId("worker", 0), TaskId("worker", 1)


def importing(mode: str = "warm", **changes: object) -> World:
    """Return a host whose standby imports what its running trainer has imported."""
    settings = Settings(LaunchSettings(standby=mode))  # type: ignore[arg-type]
    return World(settings, **changes).ready().train(7).loaded()  # type: ignore[arg-type]


def order(world: World, task: TaskId = WORKER, incarnation: int = 2) -> list[Event]:
    world.reactor.local.start(task, incarnation, world.now_s)
    return answers(world)


def answers(world: World) -> list[Event]:
    return [event for event in world.reactor.local.answers() if not isinstance(event, Preparing)]


def turn(world: World, after_s: float = 0.0) -> list[Event]:
    world._clock.advance(after_s)
    local = world.reactor.local
    news = [*local.poll(), *local.tick(is_awaited=False)]
    return [event for event in news if not isinstance(event, Preparing)]


def is_ready(world: World) -> None:
    world.standby_words.append(StandbySaid(1, Waiting(modules=3, seconds=0.5)))


def started(pid: int = 1002, task: TaskId = WORKER) -> Started:
    return Started(task, 2, pid, Promoted(pid=pid, standby=1))


def test_without_a_standby_a_start_is_made_at_once() -> None:
    assert order(importing("off")) == [Started(WORKER, 2, 1002)]


def test_a_start_waits_for_an_importing_standby_and_is_forked_from_it() -> None:
    world = importing()
    assert order(world) == []
    assert turn(world, 1.0) == []
    assert (STANDBY, HURRY_SIGNAL) in world.signals
    is_ready(world)
    assert turn(world) == []
    assert turn(world) == [started()]


def test_a_start_is_cold_once_the_standby_has_died_or_the_wait_would_be_too_long() -> None:
    dies, is_late = importing(), importing()
    for world in (dies, is_late):
        assert order(world) == []
    dies._end(STANDBY, KILLED)
    assert turn(dies) == [Started(WORKER, 2, 1002)]
    assert turn(is_late, WAIT_S_MAX - 0.1) == []
    assert turn(is_late, 0.2) == [Started(WORKER, 2, 1002)]


def test_only_an_order_for_its_attempt_withdraws_a_waiting_start_and_it_never_happens() -> None:
    for kills in (False, True):
        world = importing()
        order(world)
        local = world.reactor.local
        for incarnation in (1, 2, 2):
            if kills:
                local.kill_tree(WORKER, incarnation)
            else:
                local.signal(WORKER, incarnation, signal.SIGTERM)
        assert [type(event) for event in answers(world)] == [NotStarted], "once"
        is_ready(world)
        assert turn(world, WAIT_S_MAX) == []


def test_all_waiting_starts_are_withdrawn_when_another_coordinator_decides() -> None:
    world = importing()
    order(world)
    world.reactor.local.withdraw_starts("this launch ends")
    assert answers(world) == [NotStarted(WORKER, 2, "this launch ends")]


def test_while_one_task_is_forked_from_the_standby_another_waits_and_is_forked_too() -> None:
    world = importing(promotion="is silent")
    is_ready(world)
    turn(world)
    assert order(world) == order(world, OTHER) == []
    world.alive[STANDBY] = world.alive.pop(WORKER)
    world.alive[STANDBY].incarnation = 1
    world.promotion = "forks"
    world.standby_words.append(standby.Promoted(1, WORKER, 2, 77, is_fork=True))
    assert turn(world) == [started(77)]
    assert turn(world) == [started(task=OTHER)]


def test_a_standby_that_dies_during_a_fork_was_no_task_unless_that_was_asked_to_end() -> None:
    for is_asked in (False, True):
        world = importing(promotion="is silent")
        is_ready(world)
        turn(world)
        order(world)
        pid = world.alive[WORKER].pid
        if is_asked:
            world.reactor.local.signal(WORKER, 2, signal.SIGTERM)
        world._end(WORKER, Exit(None, 15))
        news = turn(world)
        if is_asked:
            assert news[0] == started(pid)
            assert isinstance(news[1], Ended)
        else:
            assert [(type(event), getattr(event, "is_tried_again", None)) for event in news] == [(NotStarted, True)]
