"""Tasks that outlive their coordinator continue unchanged with the next one, or all restart if they cannot."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from procsv.base.cluster import CHIEF
from procsv.base.identity import TaskId
from procsv.base.outcome import Exit
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.member_messages import Running
from procsv.ipc.shm.heartbeat import Phase
from procsv.watchdog.core.actions import StartAttempt, WriteEntry
from procsv.watchdog.core.events import Ended, Ticked, TreeGone
from procsv.watchdog.core.run import Core
from procsv.watchdog.core.settings import AdoptedTask, Settings
from procsv.watchdog.core.task.lifecycle import TaskState
from procsv.watchdog.machines.core.adoption import Newcomer, NothingToAdopt, adopt
from tests.watchdog.played import KILLED, Played, beat, journaled

WORKER, OTHER, PS, EVALUATOR = TaskId("worker", 0), TaskId("worker", 1), TaskId("ps", 0), TaskId("evaluator", 0)
CLUSTER = {"chief": ["n1:1"], "worker": ["n2:1", "n3:1"], "ps": ["n4:1"]}
SETTINGS = LaunchSettings(workers=2, ps=1, evaluators=1)


def newcomer(task: TaskId, address: str, pid: int = 7) -> Newcomer:
    return Newcomer(task, f"host of {task}", address, CLUSTER, SETTINGS, Running(3, pid, is_ready=True, in_step=False))


def all_come() -> dict[TaskId, Newcomer]:
    places = {WORKER: "n2:1", OTHER: "n3:1", PS: "n4:1", EVALUATOR: ""}
    return {task: newcomer(task, address, pid) for pid, (task, address) in enumerate(places.items(), 7)}


def test_everything_that_runs_continues_at_the_addresses_that_the_others_know() -> None:
    survivors = adopt(tuple(all_come().values()), SETTINGS)

    assert survivors.cluster == CLUSTER
    assert survivors.address_of(CHIEF) == "n1:1"
    assert survivors.tasks[PS] == AdoptedTask("host of ps.0", 3, 9, is_ready=True)
    assert set(survivors.tasks) == {WORKER, OTHER, PS, EVALUATOR}


@pytest.mark.parametrize("is_new_launch", [False, True])
def test_a_worker_that_has_ended_meanwhile_does_not_continue_and_blocks_nobody(is_new_launch: bool) -> None:
    come = all_come()
    ended = msgspec.structs.replace(come[WORKER], running=None)
    come[WORKER] = Newcomer(WORKER, "n2", "n2:1") if is_new_launch else ended

    assert set(adopt(tuple(come.values()), SETTINGS).tasks) == {OTHER, PS, EVALUATOR}


@pytest.mark.parametrize(
    ("task", "changes", "why"),
    [
        (PS, {"running": None}, "ps.0 has ended"),
        (WORKER, {"address": "n2:2"}, "worker.0 .*n2:2 .*n2:1"),
        (OTHER, {"cluster": CLUSTER | {"ps": ["n9:1"]}}, "worker.1 .* addresses"),
        (OTHER, {"settings": LaunchSettings(workers=2, ps=1)}, "worker.1 .* options"),
        (WORKER, {"running": Running(1, 7, is_ready=True, in_step=True)}, "worker.0 trains in step"),
    ],
)
def test_if_one_task_cannot_continue_with_the_others_none_does_and_the_reason_is_reported(
    task: TaskId, changes: dict[str, Any], why: str
) -> None:
    come = all_come()
    come[task] = msgspec.structs.replace(come[task], **changes)

    with pytest.raises(NothingToAdopt, match=why):
        adopt(tuple(come.values()), SETTINGS)


def test_a_gang_does_not_continue_without_its_chief() -> None:
    settings = LaunchSettings(workers=2, restart="gang")
    with pytest.raises(NothingToAdopt, match="train in step"):
        adopt((msgspec.structs.replace(all_come()[WORKER], settings=settings),), settings)


def adopting(*, is_ready: bool = True) -> Played:
    adopted = {WORKER: AdoptedTask("n2", 3, 70, is_ready), PS: AdoptedTask("n2", 3, 71)}
    return Played(trains=False, tasks=(CHIEF, WORKER, PS), hosts={WORKER: "n2", PS: "n2"}, adopted=adopted)


def test_an_adopted_task_is_not_started_and_is_journaled() -> None:
    adopted = {WORKER: AdoptedTask("n2", 3, 70, is_ready=True)}
    core = Core(Settings(tasks=(CHIEF, WORKER), hosts={WORKER: "n2"}, adopted=adopted), 5, Random(0), 100.0)

    out = core.start(100.0)

    assert [action.task for action in out if isinstance(action, StartAttempt) and action.task.runs_program] == [CHIEF]
    (told,) = [action for action in out if isinstance(action, WriteEntry) and action.entry.event == "adopted"]
    assert (told.task, told.incarnation, told.entry.fields()) == (WORKER, 3, {"pid": 70, "host": "n2"})
    assert (core.tasks[WORKER].life.state, core.tasks[CHIEF].incarnation) == (TaskState.RUNNING, 5)


def test_an_adopted_tasks_attempt_continues_and_the_next_one_follows_it() -> None:
    played = adopting()
    worker = played.core.tasks[WORKER]
    assert worker.history.was_ready, "it has made steps: an end of it is not one before its first step"

    played.tell(Ticked({WORKER: beat(Phase.STEP, 40), PS: beat(Phase.SERVE)}))
    assert (worker.step, played.core.tasks[PS].is_serving) == (40, True)
    out = played.tell(Ended(WORKER, 3, KILLED))
    assert journaled(out, "exited")[0]["pid"] == 70
    out = played.tell(TreeGone(WORKER, 3), Ticked(), at_s=played.now_s + 60.0)

    assert [(action.task, action.incarnation) for action in out if isinstance(action, StartAttempt)] == [(WORKER, 4)]


def test_an_adopted_task_before_its_first_step_is_watched_as_a_starting_one() -> None:
    played = adopting(is_ready=False)
    worker = played.core.tasks[WORKER]
    assert worker.state_label == "pending"

    played.tell(Ticked({WORKER: beat(Phase.CONNECT)}))
    assert worker.state_label == "connected"
    played.tell(Ended(WORKER, 3, Exit(1, None)))
    assert not worker.history.was_ready
