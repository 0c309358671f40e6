"""A parameter server that ends by itself: others need what it holds, so its exit code 0 is an end like any other."""

from __future__ import annotations

from procsv.base.cluster import CHIEF
from procsv.base.identity import TaskId
from procsv.ipc.messaging.messages import Hello
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.actions import Spawn
from procsv.watchdog.core.events import Said, Ticked, TreeGone
from tests.watchdog.played import DONE, Played, journaled, said

SERVER = TaskId("ps", 0)


def server_in(phase: Phase) -> Played:
    played = Played(trains=False, tasks=(CHIEF, SERVER))
    for task, its_phase in ((CHIEF, Phase.STEP), (SERVER, phase)):
        played.tell(Said(task, 1, Hello(1)), Ticked({task: Heartbeat(its_phase, 1, 1, 100.0, 0.0)}))
    return played


def test_one_that_serves_and_exits_with_0_is_started_again() -> None:
    played = server_in(Phase.SERVE)
    out = played.end(SERVER, DONE)
    (exited,) = journaled(out, "exited")
    assert exited["cause"] == "exit-code"
    assert said(out) == [
        ("ps.0 1 (pid 1003) ended with exit code 0, while it served", True),
        ("starting it again at once", False),
    ]
    out += played.tell(TreeGone(SERVER, 1), Ticked())
    assert [(action.task, action.incarnation) for action in out if isinstance(action, Spawn)] == [(SERVER, 2)]


def test_one_that_does_not_serve_and_exits_with_0_is_done() -> None:
    """A program can end its servers by a word of its own: they wait for that in a session, and not in `join`."""
    played = server_in(Phase.IDLE)
    out = played.end(SERVER, DONE)
    assert journaled(out, "exited")[0]["cause"] == "completed"
    out += played.tell(TreeGone(SERVER, 1), Ticked())
    assert not [action for action in out if isinstance(action, Spawn)]


def test_one_that_exits_with_0_once_the_run_is_to_end_is_done() -> None:
    played = server_in(Phase.SERVE)
    played.stop()
    played.end(CHIEF, DONE)
    assert journaled(played.end(SERVER, DONE), "exited")[0]["cause"] == "stopped"
    assert played.core.tasks[SERVER].ends_run
