"""`procsv status` and `top` show each of several tasks."""

from __future__ import annotations

import io
from typing import Any

import msgspec
from rich.console import Console

from procsv.base.cluster import CHIEF
from procsv.base.identity import TRAINER, TaskId
from procsv.base.system.processes import ProcessIdentity
from procsv.cli.status import show_status
from procsv.cli.top.readings import View
from procsv.cli.top.screen import draw_screen
from procsv.ipc.messaging.messages import Hello
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.report.status_object import Memory, StatusObject
from procsv.watchdog.core.events import Said, Started, Ticked, TreeGone
from procsv.watchdog.edge.status import Facts, run_file, status_object
from procsv.watchdog.host.standby import Standby
from tests.watchdog.played import KILLED, Played

WORKER, SERVER, EVALUATOR = TaskId("worker", 0), TaskId("ps", 0), TaskId("evaluator", 0)
TASKS = (CHIEF, WORKER, SERVER, EVALUATOR)
PHASES = {CHIEF: Phase.STEP, WORKER: Phase.STEP, SERVER: Phase.SERVE, EVALUATOR: Phase.IDLE}
STEPS_PER_S = {CHIEF: 2, WORKER: 5}


class Group:
    def __init__(self) -> None:
        self.played = Played(trains=False, tasks=TASKS)
        self.phases = dict(PHASES)
        self.beats: dict[TaskId, Heartbeat] = {}
        for task in TASKS:
            self.played.tell(Said(task, 1, Hello(1)))
        for _ in range(10):
            self.tick()
            for task in STEPS_PER_S:
                self.played.tell(Said(task, 1, FirstStepDone(0, "fresh", "x", 1, self.played.now_s)))

    def tick(self) -> None:
        self.played.now_s += 1.0
        now_s = self.played.now_s
        seconds = int(now_s) - 100
        self.beats = {
            task: Heartbeat(phase, 7 * seconds, 20 * seconds, now_s, 0.0, moved=STEPS_PER_S.get(task, 0) * seconds)
            for task, phase in self.phases.items()
        }
        self.played.tell(Ticked(self.beats))

    def status(self) -> dict[str, Any]:
        core = self.played.core
        start = Start(TRAINER, "r" * 16, 1, "/logdir", "/run", "/shm")
        run = run_file(Facts(start, ProcessIdentity(1, 0.0, "boot"), 1.0), core, self.played.now_s, 2.0)
        used = {"uptime": 1.0, "rss": 1, "cpu": 0.0}
        usage = dict.fromkeys((TaskId("watchdog"), *core.tasks, *core.services), used)
        memory, standby = Memory(available=1, total=2), Standby("off", [])
        shown = status_object(run, core, self.beats, usage, memory, 0, self.played.now_s, standby)
        status: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(shown))
        assert msgspec.convert(status, StatusObject) == shown
        return status

    def tasks(self) -> dict[str, dict[str, Any]]:
        return {task["task"]: task for task in self.status()["tasks"]}


def test_each_task_is_shown_with_its_own_rate_and_tasks_without_steps_have_none() -> None:
    status = Group().status()
    assert status["generation"] == 1
    assert [(task["task"], task["state"], task["steps_per_s"]) for task in status["tasks"]] == [
        ("chief", "running", 2.0),
        ("worker.0", "running", 5.0),
        ("ps.0", "serving", None),
        ("evaluator.0", "connected", None),
    ]
    assert {task["waits_for"] for task in status["tasks"]} == {None}


def test_a_lost_server_starts_another_generation_and_the_others_wait_for_it() -> None:
    group = Group()
    group.played.end(SERVER, KILLED)
    group.played.tell(TreeGone(SERVER, 1), Ticked(), Started(SERVER, 2, 77))
    del group.phases[SERVER]
    group.tick()
    assert group.status()["generation"] == 2
    tasks = group.tasks()
    assert {name: task["waits_for"] for name, task in tasks.items()} == {
        "chief": "ps.0",
        "worker.0": "ps.0",
        "ps.0": None,
        "evaluator.0": None,
    }
    assert (tasks["ps.0"]["incarnation"], tasks["ps.0"]["restarts"], tasks["ps.0"]["pid"]) == (2, 1, 77)
    assert tasks["ps.0"]["last_exit"]["cause"] == "killed"


def test_a_lost_worker_starts_no_generation() -> None:
    group = Group()
    group.played.end(WORKER, KILLED)
    group.tick()
    assert group.status()["generation"] == 1
    assert group.tasks()["worker.0"]["steps_per_s"] is None


def test_a_run_of_one_task_has_no_task_list() -> None:
    group = Group()
    group.played = Played()
    assert not {"tasks", "generation"} & group.status().keys()


def test_status_and_top_show_a_line_for_each_task(capsys: Any) -> None:
    group = Group()
    group.played.end(SERVER, KILLED)
    group.tick()
    status = group.status()
    show_status(status)
    told = capsys.readouterr().out
    text = io.StringIO()
    view = View(status, [], "loss", [], [], None, [], 1.0)
    Console(file=text, width=120, highlight=False).print(draw_screen(view, 120, 40))
    for shown in (told, text.getvalue()):
        (line,) = [line for line in shown.splitlines() if line.startswith("worker.0") and "ps.0" in line]
        assert line.split() == ["worker.0", "running", "1", "0", "5", "ps.0"]
        assert "killed: SIGKILL, sender unknown" in shown
        assert "generation" in shown
