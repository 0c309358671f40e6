"""A parameter server that ends by itself restarts: others need what it holds, so exit code 0 is an
end like any other.
"""

from __future__ import annotations

from typing import Any

from procsv.base.cluster import CHIEF
from procsv.base.identity import TaskId
from procsv.base.outcome import NO_STEP, Source
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.messages import Hello
from procsv.ipc.messaging.watchdog_messages import FirstStepDone, StopTraining
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.actions import StartAttempt
from procsv.watchdog.core.events import Ended, Said, Started, Ticked, TreeGone
from tests.support.naming import Naming
from tests.watchdog.played import DONE, KILLED, SAVED, Played, journaled, killed, said, told

WORKER, SERVER = TaskId("worker", 0), TaskId("ps", 0)


def server_in(phase: Phase) -> Played:
    played = Played(trains=False, tasks=(CHIEF, SERVER))
    for task, its_phase in ((CHIEF, Phase.STEP), (SERVER, phase)):
        played.tell(Said(task, 1, Hello(1)), Ticked({task: Heartbeat(its_phase, 1, 1, 100.0, 0.0)}))
    return played


def test_a_serving_server_that_exits_with_0_restarts() -> None:
    played = server_in(Phase.SERVE)
    out = played.end(SERVER, DONE)
    (exited,) = journaled(out, "exited")
    assert exited["cause"] == "exit-code"
    assert said(out) == [
        (Naming("ps.0 1 (pid 1003)", "exit code 0"), True),
        (Naming("again at once"), False),
    ]
    out += played.tell(TreeGone(SERVER, 1), Ticked())
    assert [(action.task, action.incarnation) for action in out if isinstance(action, StartAttempt)] == [(SERVER, 2)]


def recovery(played: Played, task: TaskId, incarnation: int, step: int, source: Source) -> dict[str, Any]:
    """Return the journal's entry about the first step of that task."""
    first = FirstStepDone(step, source, "", step + 1, 100.0)
    (recovered,) = journaled(
        played.tell(Said(task, incarnation, Hello(1)), Said(task, incarnation, first)), "recovered"
    )
    return recovered


def read(played: Played, task: TaskId, step: int) -> None:
    """Let the heartbeat of `task` show that step."""
    played.tell(Ticked({task: Heartbeat(Phase.STEP, step, 1, 100.0, 0.0)}))


def end_and_start(played: Played, task: TaskId, incarnation: int) -> None:
    played.tell(Ended(task, incarnation, KILLED), TreeGone(task, incarnation))
    for name in played.core.tasks:
        alive = Heartbeat(Phase.SERVE if name == SERVER else Phase.STEP, NO_STEP, 1, played.now_s, 0.0)
        played.tell(Ticked({name: alive} if name != task else {}), at_s=played.now_s + 2.0)
    played.tell(Started(task, incarnation + 1, 2000))


def test_a_lost_servers_cost_counts_from_the_progress_of_the_others_while_the_chief_was_away() -> None:
    played = Played(trains=False, tasks=(CHIEF, WORKER, SERVER))
    played.tell(Said(SERVER, 1, Hello(1)), Ticked({SERVER: Heartbeat(Phase.SERVE, -1, 1, 100.0, 0.0)}))
    read(played, WORKER, 8)  # it may train before the chief reports that it does
    assert recovery(played, CHIEF, 1, 0, "fresh")["lost_steps"] == 0
    assert "lost_steps" not in recovery(played, WORKER, 1, 1, "chief"), "it puts nothing back"
    read(played, CHIEF, 100)
    end_and_start(played, CHIEF, 1)
    read(played, WORKER, 160)
    assert recovery(played, CHIEF, 2, 162, "alive")["lost_steps"] == 0
    end_and_start(played, CHIEF, 2)
    read(played, WORKER, 200)
    end_and_start(played, SERVER, 1)
    out = played.tell(Said(CHIEF, 3, Hello(1)), Said(CHIEF, 3, FirstStepDone(150, "memory", "", 151, 100.0)))
    assert journaled(out, "recovered")[0]["lost_steps"] == 50, (
        "a snapshot of after the chief's death has come from a server"
    )
    assert "50 steps redone" in said(out)[0][0]
    read(played, WORKER, 200)  # an old value: it has made no step since
    read(played, WORKER, 155)
    played.tell(Said(SERVER, 2, Hello(1)), Ticked({SERVER: Heartbeat(Phase.SERVE, NO_STEP, 1, played.now_s, 0.0)}))
    end_and_start(played, SERVER, 2)
    read(played, WORKER, 170)
    end_and_start(played, CHIEF, 3)
    assert recovery(played, CHIEF, 4, 152, "memory")["lost_steps"] == 3, (
        "what is trained behind the loss is not lost by it"
    )


def test_a_server_that_does_not_serve_and_exits_with_0_is_done() -> None:
    """A program can end its servers by its own message: they wait for it in a session, not in `join`."""
    played = server_in(Phase.IDLE)
    out = played.end(SERVER, DONE)
    assert journaled(out, "exited")[0]["cause"] == "completed"
    out += played.tell(TreeGone(SERVER, 1), Ticked())
    assert not [action for action in out if isinstance(action, StartAttempt)]


def test_a_server_that_exits_with_0_once_the_run_is_to_end_is_done() -> None:
    played = server_in(Phase.SERVE)
    played.stop()
    played.end(CHIEF, DONE)
    assert journaled(played.end(SERVER, DONE), "exited")[0]["cause"] == "stopped"
    assert played.core.tasks[SERVER].ends_run


def test_a_task_whose_server_has_ended_before_it_is_killed_within_seconds_at_a_stop() -> None:
    played = Played(trains=False, tasks=(CHIEF, WORKER, SERVER), launch=LaunchSettings(grace_s=100.0))
    for task, phase in ((CHIEF, Phase.STEP), (WORKER, Phase.STEP), (SERVER, Phase.SERVE)):
        played.tell(Said(task, 1, Hello(1)), Ticked({task: Heartbeat(phase, 1, 1, 100.0, 0.0)}))
    played.stop()
    played.tick(102.1)
    assert not killed(played.tick(120.0)), "each has its share of the grace"
    out = played.end(SERVER, KILLED, at_s=121.0)
    assert not [action for action in out if isinstance(action, StartAttempt)]
    assert not killed(played.tick(125.9))
    assert killed(played.tick(126.1)) == [CHIEF, WORKER]
    (exited,) = journaled(played.end(CHIEF, KILLED), "exited")
    assert exited["evidence"] == Naming("SIGKILL", "a server", " 5.0 s")


def test_a_worker_that_serves_its_coordinator_is_asked_to_end_after_it_and_one_that_trains_before_it() -> None:
    for phase, asked_first in ((Phase.SERVE, CHIEF), (Phase.STEP, WORKER)):
        played = Played(trains=False, tasks=(CHIEF, WORKER, SERVER))
        for task, its_phase in ((CHIEF, Phase.STEP), (WORKER, phase), (SERVER, Phase.SERVE)):
            played.tell(Said(task, 1, Hello(1)), Ticked({task: Heartbeat(its_phase, 1, 1, 100.0, 0.0)}))
        second = WORKER if asked_first == CHIEF else CHIEF
        assert told(played.stop()) == [(asked_first, StopTraining)]
        assert (second, StopTraining) in told(played.end(asked_first, SAVED))
        assert (SERVER, StopTraining) in told(played.end(second, SAVED))
