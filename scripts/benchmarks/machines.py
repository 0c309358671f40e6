"""Table `machines`: one launch per task, as on several machines: how soon a launch joins, what
members cost the coordinator, and how soon a spare machine replaces a lost one.

Called by __main__.py. All launches are on this machine and communicate by TCP as on several; each
gets its task from TF_CONFIG.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from procsv.base.cluster import list_spares, list_tasks, make_cluster
from procsv.base.identity import TaskId
from procsv.base.journal.file import read_journal
from procsv.base.system.system_clock import SystemClock
from procsv.watchdog.edge.resources.held_ports import HeldPorts
from scripts.benchmarks.figures import Bar, Column, Figure, Table
from scripts.benchmarks.processes import END_S_MAX, TrialFailed, procsv_command, scratch, started, tail
from scripts.benchmarks.settings import Settings

CLOCK, PAUSE = SystemClock(), threading.Event()
MEMBERS, QUICK_MEMBERS = (1, 16, 64), (1, 8)
SETTLE_S, SECONDS, QUICK_SECONDS = 10.0, 20.0, 8.0
PEER_S = 10.0  # the default of --peer-timeout
NEWS_S_MAX, LOOK_S = 300.0, 0.02
JOIN_S_MAX, CPU_MAX, AGAIN_S_MAX = 2.0, 1.0, 10.0
REPLICAS = ("procsv.examples.replicas", "--steps", "1000000", "--step-ms", "20")
WAITS = "import threading\nthreading.Event().wait()\n"

COLUMNS = (
    Column("what", "run"),
    Column("join_s", "the last launch joins", "s", 2),
    Column("cpu", "coordinator", "% of a core", 2),
    Column("again_s", "a machine is lost, until\nthe next step", "s", 1),
)


class Launches:
    """The launches of one run, each with a log of its own."""

    def __init__(self, folder: Path, tasks: Sequence[TaskId], args: Sequence[str], held: contextlib.ExitStack) -> None:
        """`held`: ends them."""
        self.logdir, self.tasks, self._folder, self._args, self._held = folder / "run", tasks, folder, args, held
        ports = HeldPorts()
        self._cluster = make_cluster(ports.hold(tasks))
        ports.close()  # each launch opens its own
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, task: TaskId) -> None:
        config = {"cluster": self._cluster, "task": {"type": task.role, "index": task.index}}
        variables = {"TF_CONFIG": json.dumps(config), "PROCSV_HOST": "127.0.0.1"}
        argv = procsv_command("launch", "--logdir", str(self.logdir), "--standby", "off", *self._args)
        process = started(argv, self._log(task), cwd=self._folder, variables=variables)
        self.processes[str(task)] = self._held.enter_context(process)

    def _log(self, task: TaskId) -> Path:
        return self._folder / f"{task}.log"

    def events(self, name: str, role: str = "") -> list[dict[str, Any]]:
        lines = read_journal(self.logdir / "procsv" / "journal.jsonl")
        return [line.as_dict() for line in lines if line.entry.event == name and role in ("", line.role)]

    def wait(self, name: str, count: int = 1, role: str = "") -> dict[str, Any]:
        """Return the `count`th event of that name."""
        deadline_s = CLOCK.monotonic() + NEWS_S_MAX
        while len(found := self.events(name, role)) < count:
            if CLOCK.monotonic() > deadline_s:
                raise TrialFailed(f"machines: no {count} x {name}\n{tail(self._log(self.tasks[0]))}")
            PAUSE.wait(LOOK_S)
        return found[count - 1]

    def stop(self) -> None:
        self.processes[str(self.tasks[0])].send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.wait(END_S_MAX)


@contextlib.contextmanager
def _launches(tasks: Sequence[TaskId], *args: str) -> Iterator[Launches]:
    with scratch() as folder, contextlib.ExitStack() as held:
        (folder / "waits.py").write_text(WAITS)
        yield Launches(folder, tasks, args, held)


def measure(settings: Settings) -> Table:
    table = Table("machines", "One launch a task, as on several machines", COLUMNS)
    repeats = settings.repeats_or(usual=3)
    joins = list[float]()
    cpu = 0.0
    for members in QUICK_MEMBERS if settings.quick else MEMBERS:
        settings.say(f"machines: {members} beside the coordinator")
        found = [_join(members, settings.quick) for _ in range(repeats if members == 1 else 1)]
        joins += [join_s for join_s, _ in found if members == 1]
        cpu = statistics.median(used for _, used in found)
        shown = Figure.of(join_s for join_s, _ in found) if members == 1 else None
        table.rows.append(
            {"what": f"coordinator and {members}", "join_s": shown, "cpu": Figure.of(u for _, u in found)}
        )
    settings.say("machines: one is lost")
    again = [_lose() for _ in range(repeats)]
    table.rows.append({"what": "chief, worker, server; a spare one", "again_s": Figure.of(again)})
    table.notes.append(
        f"A machine counts as lost after {PEER_S:g} s of silence, which the time to the next step includes."
    )
    again_s = statistics.median(again)
    table.bars += [
        Bar.at_most("a member joins", JOIN_S_MAX, statistics.median(joins), "s", 2),
        Bar.at_most(f"coordinator with {members} members, at rest", CPU_MAX, cpu, "% of a core", 2),
        Bar.at_most(
            "a machine is lost, a spare one there", PEER_S + AGAIN_S_MAX, again_s, "s", 1, "the peer timeout + 10 s = "
        ),
    ]
    return table


def _join(members: int, is_quick: bool) -> tuple[float, float]:
    """Return the seconds from the last launch's start to the run's, and the percent of a core that
    an idle coordinator takes.
    """
    tasks = list_tasks(members, 0, 0)
    with _launches(tasks, "waits.py") as run:
        for task in tasks[:-1]:
            run.start(task)
        if members == 1:
            _wait_term(run)
        begun_s = CLOCK.wall()
        run.start(tasks[-1])
        join_s = run.wait("run_started")["time"] - begun_s
        for task in tasks:
            run.wait("spawned", role=str(task))
        PAUSE.wait(SETTLE_S)
        coordinator = psutil.Process(run.processes[str(tasks[0])].pid)
        before, seconds = _cpu_s(coordinator), QUICK_SECONDS if is_quick else SECONDS
        PAUSE.wait(seconds)
        used = 100 * (_cpu_s(coordinator) - before) / seconds
        run.stop()
    return join_s, used


def _wait_term(run: Launches) -> None:
    deadline_s = CLOCK.monotonic() + NEWS_S_MAX
    while not list((run.logdir / "procsv" / "group").glob("term-*.json")):
        if CLOCK.monotonic() > deadline_s:
            raise TrialFailed("machines: the coordinator has not begun")
        PAUSE.wait(LOOK_S)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _lose() -> float:
    """Return the seconds from the loss of a worker's machine to the first step of all tasks on the
    remaining machines.
    """
    tasks = list_tasks(1, 1, 0) + list_spares(1)
    with _launches(
        tasks, "--workers", "1", "--ps", "1", "--spare-nodes", "1", "--snapshot-secs", "1", *REPLICAS
    ) as run:
        for task in tasks:
            run.start(task)
        run.wait("ready", role="chief")
        run.wait("checkpoint_durable")
        PAUSE.wait(SETTLE_S)
        lost = run.processes["worker.0"]
        begun_s = CLOCK.wall()
        lost.send_signal(signal.SIGSTOP)
        os.kill(run.events("spawned", "worker.0")[-1]["pid"], signal.SIGKILL)
        seconds = float(run.wait("ready", 2, "chief")["time"]) - begun_s
        lost.send_signal(signal.SIGCONT)
        lost.send_signal(signal.SIGTERM)
        run.stop()
    return seconds
