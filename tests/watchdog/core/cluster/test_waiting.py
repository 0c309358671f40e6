"""A task that can only wait for another is not hanging, however long that takes."""

from __future__ import annotations

from procsv.base.cluster import CHIEF
from procsv.base.identity import TaskId
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.messages import Hello
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.actions import WriteEntry
from procsv.watchdog.core.events import Said, Started, Ticked, TreeGone
from tests.support.naming import Naming
from tests.watchdog.played import DONE, KILLED, Played, journaled, said

WORKER, SERVER, EVALUATOR = TaskId("worker", 0), TaskId("ps", 0), TaskId("evaluator", 0)
TASKS = (CHIEF, WORKER, SERVER, EVALUATOR)
TRAINS, SERVES, CONNECTS = Phase.STEP, Phase.SERVE, Phase.CONNECT
LOOK_S = 5
STEP_S = 100.0  # learned by an earlier launch: a step may take 2000 s, and a server may be silent as long


class Tasks:
    """Four tasks whose heartbeats the watchdog reads every five seconds."""

    def __init__(self, **phases: Phase) -> None:
        self.played = Played(trains=False, tasks=TASKS, learned_step_s=STEP_S, launch=LaunchSettings())
        self.phases = {CHIEF: TRAINS, WORKER: TRAINS, SERVER: SERVES, EVALUATOR: Phase.IDLE}
        self.phases |= {TaskId.parse(name.replace("_", ".")): phase for name, phase in phases.items()}
        self.silent: dict[TaskId, float] = {}  # the last beat of tasks whose heartbeat has stopped
        self.stuck: set[TaskId] = set()  # tasks that beat without progress
        self.work = 0
        for task in TASKS:
            self.played.tell(Said(task, 1, Hello(1)))
        self.tick()
        if self.phases[CHIEF] is TRAINS:
            self.ready(CHIEF)

    def ready(self, task: TaskId) -> None:
        self.played.tell(Said(task, 1, FirstStepDone(0, "fresh", "x", 1, self.played.now_s)))

    def tick(self, seconds: int = LOOK_S) -> list[str]:
        """Let time pass. Return the tasks found hanging."""
        found = []
        for _ in range(seconds // LOOK_S):
            self.played.now_s += LOOK_S
            self.work += 1
            out = self.played.tell(Ticked({task: self._beat(task) for task in self.phases}))
            hangs = [
                action for action in out if isinstance(action, WriteEntry) and action.entry.event == "hang_detected"
            ]
            found += [str(action.task) for action in hangs if action.task in TASKS]
        return found

    def _beat(self, task: TaskId) -> Heartbeat:
        work = 0 if task in self.stuck else self.work
        return Heartbeat(self.phases[task], work, work, self.silent.get(task, self.played.now_s), 0.0)

    def awaited(self, task: TaskId) -> TaskId | None:
        return self.played.core.awaited_by(task, self.played.now_s)


def test_no_task_waits_while_all_is_well() -> None:
    tasks = Tasks()
    assert {task: tasks.awaited(task) for task in TASKS} == dict.fromkeys(TASKS)


def test_all_sessions_wait_for_a_silent_server_and_only_the_server_counts_as_hanging() -> None:
    """A waiting task would exceed its own limit first: both limits are twenty steps."""
    tasks = Tasks()
    tasks.silent[SERVER] = tasks.played.now_s
    tasks.stuck = {CHIEF, WORKER, SERVER}
    assert tasks.tick(1900) == []
    assert {task: tasks.awaited(task) for task in TASKS} == {
        CHIEF: SERVER,
        WORKER: SERVER,
        SERVER: None,
        EVALUATOR: None,
    }
    assert tasks.tick(300) == ["ps.0"]


def test_a_task_without_progress_while_the_servers_are_well_is_found() -> None:
    tasks = Tasks()
    tasks.stuck = {WORKER}
    assert tasks.tick(2100) == ["worker.0"]


def test_a_server_is_waited_for_until_its_successor_serves() -> None:
    tasks = Tasks()
    tasks.played.end(SERVER, KILLED)
    del tasks.phases[SERVER]
    tasks.stuck = {CHIEF, WORKER}
    assert tasks.tick(3000) == []
    assert tasks.awaited(WORKER) == SERVER
    tasks.played.tell(TreeGone(SERVER, 1), Ticked(), Started(SERVER, 2, 77))
    tasks.phases[SERVER] = Phase.IMPORT
    assert tasks.tick(100) == []
    assert tasks.awaited(CHIEF) == SERVER
    tasks.phases[SERVER] = SERVES  # its heartbeat shows it, whether or not its message arrived
    tasks.tick()
    assert tasks.awaited(CHIEF) is None
    assert sorted(tasks.tick(2100)) == ["chief", "worker.0"]


def test_a_worker_waits_for_its_chief_to_create_the_model_however_long_that_takes() -> None:
    tasks = Tasks(chief=Phase.RESTORE, worker_0=CONNECTS)
    tasks.stuck = {WORKER}
    assert tasks.awaited(WORKER) == CHIEF
    assert tasks.tick(4000) == []
    tasks.phases[CHIEF] = TRAINS
    tasks.tick()
    tasks.ready(CHIEF)
    assert tasks.awaited(WORKER) is None
    assert tasks.tick(2000) == ["worker.0"], "a model that is there is no reason to wait"


def test_no_task_waits_for_a_server_that_has_never_served() -> None:
    """A program may not use TensorFlow's servers, and its other tasks are still watched."""
    tasks = Tasks(ps_0=Phase.IMPORT)
    tasks.stuck = {WORKER}
    assert tasks.awaited(WORKER) is None
    assert "worker.0" in tasks.tick(2100)


def test_a_task_before_its_session_waits_for_nobody() -> None:
    tasks = Tasks(worker_0=Phase.IMPORT)
    tasks.silent[SERVER] = tasks.played.now_s
    tasks.tick(20)
    assert tasks.awaited(CHIEF) == SERVER
    assert tasks.awaited(WORKER) is None


def test_a_task_that_has_ended_waits_for_nobody() -> None:
    tasks = Tasks()
    tasks.played.end(WORKER, DONE)
    tasks.played.end(SERVER, KILLED)
    assert tasks.awaited(WORKER) is None
    assert journaled(tasks.played.end(CHIEF, KILLED), "exited")[0]["cause"] == "killed"


def test_a_wait_for_a_session_beside_a_finished_task_is_reported_once_with_its_name() -> None:
    tasks = Tasks(chief=CONNECTS)
    assert not said(tasks.played.tell(Ticked(), at_s=tasks.played.now_s + 100.0)), "nobody is done"
    tasks.played.end(WORKER, DONE)
    tasks.played.tell(TreeGone(WORKER, 1), Ticked())
    del tasks.phases[WORKER]
    told = []
    for _ in range(5):
        tasks.played.now_s += LOOK_S
        told += said(tasks.played.tell(Ticked({CHIEF: tasks._beat(CHIEF)})))
    (text, _), *others = told
    assert text == Naming("chief ", " 10 s, ", "worker.0 ", "exit code 0")
    assert not others
