"""The watchdog's core makes a standby, promotes it to trainer and survives its death."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from procsv.base.errors import ProcsvBug
from procsv.base.identity import STANDBY, TRAINER, TaskId
from procsv.base.journal.entries import FitBegun
from procsv.base.outcome import Exit
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.fd_messages import Waiting
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.watchdog_messages import Note
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.core.task.lifecycle import TaskState as Life
from procsv.watchdog.host.standby import (
    PROMOTE_S_MAX,
    ROOM_BYTES_MIN,
    ROOM_LOOK_S,
    TRANSITIONS,
    Promoted,
    Standby,
    StandbyEvent,
    StandbySaid,
    StandbyState,
    Todo,
)
from tests.watchdog.world import KILLED, Process, World

DONE, CHECKPOINTED = Exit(0, None), Exit(75, None)


def training(mode: str = "warm", **changes: object) -> World:
    """Return a run whose trainer is at step 840, with 800 on disk, and has reported its imports."""
    world = World(settings=Settings(LaunchSettings(standby=mode)), **changes).ready().train(840)  # type: ignore[arg-type]
    world.durable(800)
    return world.loaded()


def waiting(**changes: object) -> World:
    """Return the same run with a waiting standby."""
    return training("warm", **changes).wait()


def spawned(world: World, task: TaskId) -> list[int]:
    return [entry.incarnation for entry in world.events("spawned") if entry.task == task]


@pytest.mark.parametrize(
    ("state", "event"), [pair for pair in itertools.product(StandbyState, StandbyEvent) if pair not in TRANSITIONS]
)
def test_an_unlisted_pair_is_a_bug_and_does_nothing(state: StandbyState, event: StandbyEvent) -> None:
    out: list[Todo] = []
    with pytest.raises(ProcsvBug, match=f"{event.name} in {state.name}"):
        Standby("warm", out, state=state).handle(event, 1.0)
    assert not out


def test_from_every_state_an_unwanted_standby_is_gone_once_it_has_died() -> None:
    for state in StandbyState:
        standby = Standby("warm", [], state=state)
        standby.handle(StandbyEvent.UNWANTED, 1.0)
        if standby.state is not StandbyState.ABSENT:
            standby.handle(StandbyEvent.DIED, 2.0)
        assert standby.state is StandbyState.ABSENT, state


def test_a_standby_is_made_when_training_runs_and_its_imports_are_known_and_not_before() -> None:
    world = World(settings=Settings(LaunchSettings(standby="warm"))).ready().train(840)
    world.advance(10.0)
    assert STANDBY not in world.alive
    world.loaded()
    assert spawned(world, STANDBY) == [1]
    world.wait().advance(100.0)
    assert spawned(world, STANDBY) == [1]
    assert world.standby.is_ready
    assert world.standby.next_due_s() is None, "it costs the watchdog nothing to have one"


def test_off_makes_no_standby() -> None:
    world = training("off")
    world.advance(100.0)
    assert spawned(world, STANDBY) == []


def test_each_crash_after_progress_is_followed_by_a_fork_without_delay() -> None:
    world = waiting()
    pid = world.alive[STANDBY].pid
    for crash in (1, 2, 3):
        world.crash()
        assert world.last("restarting")["delay"] == 0.0
        world.advance(0.001)
        trainer = world.alive[TRAINER]
        assert (trainer.incarnation, world.core.chief.pid) == (crash + 1, trainer.pid)
        assert world.last("promoted") == {"pid": trainer.pid, "standby": 1}
        assert (world.alive[STANDBY].pid, world.standby.pid, world.standby.is_ready) == (pid, pid, True)
        world.train(900 + crash, 840).loaded().durable(900 + crash)
    assert spawned(world, STANDBY) == [1]
    assert spawned(world, TRAINER) == [1, 2, 3, 4]


def test_a_forks_first_message_is_handled_after_the_news_of_the_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    world = waiting(promotion="is silent")
    world.crash()
    world.advance(0.001)
    receive = world.sockets.server.receive

    def come_later() -> Received | None:
        """Both arrive while the watchdog is busy with something else."""
        if (received := receive()) is not None:
            world.standby_words.append(Promoted(1, TRAINER, 2, 1002, is_fork=True))
        return received

    monkeypatch.setattr(world.sockets.server, "receive", come_later)
    world.receive(TRAINER, Note(FitBegun(fit=1, model="m", epochs=2, how="")))
    world.turn()
    assert [entry.incarnation for entry in world.events("fit_begun")] == [2]
    assert world.core.chief.pid == 1002


def test_a_standby_that_cannot_be_forked_becomes_the_trainer_and_another_is_made() -> None:
    world = training(promotion="becomes it")
    world.standby_words.append(StandbySaid(1, Waiting(2000, 2.5, no_fork="it runs a thread")))
    pid = world.alive[STANDBY].pid
    world.crash()
    world.advance(0.001)
    assert (world.alive[TRAINER].incarnation, world.alive[TRAINER].pid, world.core.chief.pid) == (2, pid, pid)
    assert world.last("promoted") == {"pid": pid, "standby": 1}
    assert STANDBY not in world.alive
    assert world.standby.pid == 0

    world.train(900, 840).loaded()
    assert spawned(world, STANDBY) == [1, 2]
    world.standby_words.append(StandbySaid(2, Waiting(2000, 2.5, no_fork="it runs a thread")))
    world.advance(0.1)
    assert len([text for text in world.said if "it runs a thread" in text]) == 1


def test_a_second_crash_without_progress_has_its_usual_delay_and_still_uses_the_standby() -> None:
    world = waiting()
    world.crash()
    world.advance(0.001)
    world.train(841, 840).loaded()
    world.crash()
    assert 0.8 <= world.last("restarting")["delay"] <= 1.2
    world.advance(1.3)
    assert world.last("promoted")["standby"] == 1
    assert world.core.chief.history.no_progress_count == 2


def test_after_exit_75_a_fork_is_made_too() -> None:
    world = waiting()
    world.crash(CHECKPOINTED)
    world.advance(0.001)
    assert world.last("promoted")["pid"] == world.alive[TRAINER].pid


def test_an_importing_standby_is_waited_for_and_not_longer_than_half_a_minute() -> None:
    world = training()
    world.crash()
    world.advance(29.9)
    assert spawned(world, TRAINER) == [1]
    world.advance(0.2)
    assert spawned(world, TRAINER) == [1, 2], "a cold start"
    assert world.alive[STANDBY].incarnation == 1, "it goes on with its imports, for the next time"
    world.wait()
    assert world.standby.is_ready


def test_a_standby_that_dies_while_awaited_is_followed_by_a_cold_start_at_once() -> None:
    world = training()
    world.crash()
    world.end(STANDBY, KILLED)
    world.advance(0.001)
    assert spawned(world, TRAINER) == [1, 2]


def test_a_stop_during_a_fork_ends_both() -> None:
    world = waiting(promotion="is silent")
    world.crash()
    world.advance(0.001)
    world.stop()
    standby = world.alive.pop(TRAINER)
    world.alive[STANDBY] = Process(STANDBY, 1, standby.pid)
    world.alive[TRAINER] = Process(TRAINER, 2, 2002)
    world.standby_words.append(Promoted(1, TRAINER, 2, 2002, is_fork=True))
    world.advance(0.001)
    assert STANDBY not in world.alive
    world.end(TRAINER, CHECKPOINTED)
    assert world.exit_code == 75
    assert not world.alive


def test_a_standby_that_becomes_ready_while_a_crashed_trainer_waits_is_used() -> None:
    world = training()
    world.crash()
    world.advance(0.5)
    world.wait().advance(0.001)
    assert world.last("promoted")["standby"] == 1


def test_a_standbys_deaths_affect_no_other_process_get_growing_delays_and_are_reported_once() -> None:
    world = waiting()
    made = 1
    for delay_s in (1.0, 4.0, 16.0, 64.0, 256.0):
        world.end(STANDBY, KILLED)
        world.advance(delay_s - 0.1)
        assert len(spawned(world, STANDBY)) == made
        world.advance(0.7)
        made += 1
        assert len(spawned(world, STANDBY)) == made
    assert [entry.task for entry in world.events("exited")] == [STANDBY] * 5
    assert world.events("exited")[0].entry.fields()["cause"] == "killed"
    assert spawned(world, TRAINER) == [1]
    assert world.core.chief.history.no_progress_count == 0
    assert len([text for text in world.said if "standby keeps failing" in text]) == 1
    for _ in range(60):  # an hour of training
        world.step(world.core.chief.step + 1)
        world.advance(60.0)
    world.end(STANDBY, Exit(1, None))
    world.advance(1.5)
    assert len(spawned(world, STANDBY)) == made + 1, "deaths of long ago are forgotten"


def test_no_standby_is_started_while_a_crashed_trainer_waits_or_starts() -> None:
    world = waiting()
    world.end(STANDBY, KILLED)
    world.crash()
    world.advance(30.0)
    assert spawned(world, TRAINER) == [1, 2]
    assert spawned(world, STANDBY) == [1]


def test_a_standby_that_dies_as_it_becomes_the_trainer_costs_no_failure_and_a_cold_start_follows_at_once() -> None:
    world = waiting(promotion="is silent")
    world.crash()
    world.advance(0.001)
    assert world.standby.state is StandbyState.PROMOTING
    assert world.core.chief.life.state is Life.PENDING
    failures = world.core.chief.history.no_progress_count
    world.end(TRAINER, KILLED)
    world.advance(0.001)
    assert spawned(world, TRAINER) == [1, 2]
    assert world.core.chief.life.state is Life.PENDING
    assert world.core.chief.history.no_progress_count == failures
    assert [(entry.task, entry.incarnation) for entry in world.events("exited")] == [(TRAINER, 1), (STANDBY, 1)]
    assert not world.events("promoted")
    assert len(world.reports) == 1, "of the trainer alone"
    assert any("starts cold" in text for text in world.said)


def test_a_standby_that_cannot_be_reached_is_ended_and_a_cold_start_follows_at_once() -> None:
    world = waiting(promotion="cannot be told")
    world.crash()
    world.advance(0.01)
    assert spawned(world, TRAINER) == [1, 2]
    assert STANDBY not in world.alive
    assert world.events("exited")[-1].entry.fields()["evidence"] == "SIGKILL, sent by procsv: Broken pipe"


def test_a_standby_that_does_not_answer_is_killed_in_time() -> None:
    world = waiting(promotion="is silent")
    world.crash()
    world.advance(PROMOTE_S_MAX - 0.1)
    assert spawned(world, TRAINER) == [1]
    world.advance(0.2)
    assert spawned(world, TRAINER) == [1, 2]
    assert "did not answer" in world.events("exited")[-1].entry.fields()["evidence"]


@pytest.mark.parametrize("state", [StandbyState.IMPORTING, StandbyState.WAITING])
def test_a_standby_never_keeps_a_run_alive(state: StandbyState) -> None:
    for end in ("stopped", "done", "gave up"):
        world = training() if state is StandbyState.IMPORTING else waiting()
        assert world.standby.state is state
        if end == "stopped":
            world.stop()
            assert STANDBY not in world.alive, "at once, while the trainer saves"
            world.crash(CHECKPOINTED)
        else:
            world.crash(DONE if end == "done" else Exit(78, None))
        assert world.exit_code == {"stopped": 75, "done": 0, "gave up": 70}[end]
        assert not world.alive
        stopped = world.events("exited")
        assert [e.entry.fields()["cause"] for e in stopped if e.task == STANDBY] == ["stopped"]


def test_a_stop_while_it_becomes_the_trainer_ends_it_as_the_trainer() -> None:
    world = waiting(promotion="is silent")
    world.crash()
    world.advance(0.001)
    world.stop()
    assert TRAINER in world.alive
    world.end(TRAINER, Exit(None, 15))
    assert world.exit_code == 75
    assert not world.alive


def test_short_memory_makes_no_standby_and_is_reported_once() -> None:
    world = training(room_bytes=ROOM_BYTES_MIN * 3 // 4)
    world.advance(5 * ROOM_LOOK_S)
    assert spawned(world, STANDBY) == []
    (text,) = [text for text in world.said if "no standby" in text]
    assert {"1.0 GiB", "768.0 MiB"} == set(re.findall(r"[\d.]+ [MG]iB", text))
    world.room_bytes = ROOM_BYTES_MIN
    world.advance(ROOM_LOOK_S)
    assert spawned(world, STANDBY) == [1]


def test_memory_that_the_trainer_may_still_use_is_never_reported_as_less_than_none() -> None:
    world = training(room_bytes=-ROOM_BYTES_MIN)
    (text,) = [text for text in world.said if "no standby" in text]
    assert " 0 B " in text


def test_a_system_that_cannot_start_processes_is_asked_again_later() -> None:
    world = training(refuses_spawns=True)
    assert (world.refused, spawned(world, STANDBY)) == (1, [])
    world.refuses_spawns = False
    world.advance(1.5)
    assert spawned(world, STANDBY) == [2]


def test_a_hot_standby_that_prepares_another_trainer_than_the_one_started_is_ended() -> None:
    world = training("hot")
    world.crash()
    world.advance(0.001)
    assert spawned(world, TRAINER) == [1, 2]
    assert STANDBY not in world.alive
    world.train(900, 840).loaded()
    assert spawned(world, STANDBY) == [1, 2]


def test_a_program_that_ends_before_its_session_gets_a_warm_standby() -> None:
    world = training("hot")
    assert world.standby.mode == "hot"
    world.end(STANDBY, Exit(0, None))
    world.advance(1.5)
    assert world.standby.mode == "warm"
    assert spawned(world, STANDBY) == [1, 2]
    assert any("no hot standby" in text for text in world.said)
    assert world.core.exit_code is None


def test_random_histories_keep_one_trainer_and_leave_no_process() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        world = waiting(
            seed=seed, promotion=rng.choice(("forks", "forks", "becomes it", "cannot be told", "is silent"))
        )
        for _ in range(30):
            if world.quit is not None:
                break
            _something(world, rng)
        if world.quit is None:
            world.stop(now=True)
            world.advance(120.0)
        assert world.quit is not None, seed
        assert not world.alive, seed


def _something(world: World, rng: random.Random) -> None:
    standby = world.standby
    match rng.randrange(7):
        case 0 if STANDBY in world.alive:
            world.end(STANDBY, rng.choice((KILLED, Exit(1, None))))
        case 1 if TRAINER in world.alive:
            world.crash(rng.choice((KILLED, KILLED, CHECKPOINTED, Exit(1, None))))
        case 2 if TRAINER in world.alive and world.core.chief.pid:
            world.memory_step = world.core.chief.step + 1
            world.train(world.core.chief.step + 2, world.core.chief.step)
        case 3 if world.core.chief.pid:
            world.loaded()
        case 4 if standby.state is StandbyState.IMPORTING:
            world.wait()
        case 5 if rng.random() < 0.1:
            world.stop()
        case _:
            world.advance(rng.choice((0.001, 0.5, 3.0)))
