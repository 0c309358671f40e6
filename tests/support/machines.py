"""Run several launches, one a task, as on several machines. They are real processes and learn their
task from TF_CONFIG.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from procsv.base.cluster import make_cluster, needs_address
from procsv.base.identity import TaskId
from procsv.testing.run import start_launch
from procsv.watchdog.edge.resources.held_ports import HeldPorts
from tests.support.journal import check_journal
from tests.support.launched import LAUNCH, NOT_SAVED, PYTHONPATH, Launched
from tests.support.own_machines import OwnMachine
from tests.support.within import go_within

PORT = 2222  # of each task that has a machine of its own
WAITS = """
import os, pathlib, threading
print("I am", os.environ["PROCSV_TASK"], flush=True)
end = pathlib.Path(os.environ["PROCSV_LOGDIR"]) / "end"
while os.environ["PROCSV_TASK"] != "chief" or not end.exists():
    threading.Event().wait(0.05)
"""  # a program that trains nothing; its chief ends once that file exists


M = TypeVar("M", bound="Machines")


class Machines:
    """The launches of a run by task. The first one coordinates. Each prints to its own file."""

    def __init__(
        self,
        directory: Path,
        tasks: Sequence[str],
        args: Sequence[str],
        variables: Mapping[str, str],
        hosts: Sequence[OwnMachine] = (),
    ) -> None:
        """`hosts` says where each launch runs; without it all run here. With `--cluster slurm` they
        get their task as from srun.
        """
        self._in_step = "slurm" in args
        self.logdir, self._args, self._directory = directory / "run", args, directory
        self._env = {**PYTHONPATH, **variables}
        self.tasks = [TaskId.parse(task) for task in tasks]  # including launches without a task, as spare.0
        self._ports, self._hosts = HeldPorts(), dict(zip(self.tasks, hosts, strict=bool(hosts)))
        told = {task: f"{host.address}:{PORT}" for task, host in self._hosts.items() if needs_address(task)}
        self._cluster = make_cluster(told or self._ports.hold(self.tasks))
        self._started: list[Launched] = []
        self.launches: dict[str, Launched] = {}

    def launch(
        self, task: str, *more: str, launcher: Sequence[str] = (), within: Sequence[str] = (), **env: str
    ) -> Launched:
        """Start that task's `procsv launch`; `more` goes before the other arguments.

        `launcher` replaces `procsv launch --logdir`; `within` is as in `launched`; `env` is for
        this launch only.
        """
        number = sum(path.is_symlink() for path in self._directory.iterdir())
        place = self._directory / f"{task}.{number}"
        which = TaskId.parse(task)
        place.symlink_to(self.place_of(which))  # its own name, for its output
        config = {"cluster": self._cluster, "task": {"type": which.role, "index": which.index}}
        host = self._hosts.get(which)
        told = self._step(which) if self._in_step else {"TF_CONFIG": json.dumps(config)}
        own = self.own_variables(which)
        variables = {**self._env, "PROCSV_HOST": host.address if host else "127.0.0.1", **own, **told, **env}
        standby = [] if "--standby" in self._args else ["--standby", "off"]
        args, command = [*standby, *more, *self._args], launcher or self.launcher or LAUNCH
        command = go_within(within or (host.within if host else ()), command)
        process, output = start_launch(place, args, variables, self._directory, command)
        launched = Launched(place, process, output)
        self._started.append(launched)
        self.launches[task] = launched
        return launched

    def move(self, task: str, host: OwnMachine) -> None:
        """Start that task's later launches on `host`."""
        self._hosts[TaskId.parse(task)] = host

    def _step(self, task: TaskId) -> dict[str, str]:
        rank, ranks = str(self.tasks.index(task)), str(len(self.tasks))
        return {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": ranks, "SLURM_PROCID": rank}

    launcher: tuple[str, ...] = ()  # replaces `procsv launch --logdir`

    def place_of(self, task: TaskId) -> Path:
        """Return the logdir as this launch sees it. A subclass may give each launch its own."""
        return self.logdir

    def own_variables(self, task: TaskId) -> dict[str, str]:
        """Return variables for this launch's environment only."""
        return {}

    def launch_all(self) -> Launched:
        """Start every launch, the coordinator last, to show that the order does not matter."""
        for task in reversed(self.tasks):
            self.launch(str(task))
        return self.launches[str(self.tasks[0])]

    def codes(self) -> dict[str, int]:
        """Wait for all launches and return their exit codes."""
        return {task: launch.wait_end() for task, launch in self.launches.items()}

    def is_stopped_unsaved(self, *tasks: str) -> bool:
        """Return whether those launches (or all) exit with the same code, one that does not promise a resume."""
        codes = {self.launches[task].wait_end() for task in tasks or self.launches}
        return len(codes) == 1 and codes <= set(NOT_SAVED)

    def end(self) -> None:
        for host in self._hosts.values():
            host.send_signal(signal.SIGKILL)
        for launch in self._started:
            launch.end()
        self._ports.close()


@contextlib.contextmanager
def machines(
    directory: Path,
    tasks: Sequence[str],
    *args: str,
    program: str = WAITS,
    target: Sequence[str] = ("train.py",),
    hosts: Sequence[OwnMachine] = (),
    **env: str,
) -> Iterator[Machines]:
    """Prepare launches of `target` (`program`) with these options for the test to start. They end
    with the block.
    """
    (directory / "train.py").write_text(program)
    with launches_of(Machines(directory, tasks, (*args, *target), env, hosts)) as made:
        yield made


@contextlib.contextmanager
def launches_of(made: M) -> Iterator[M]:
    """Run the block with launches of a subclass, whose program the caller has written."""
    made.logdir.mkdir(exist_ok=True)
    try:
        yield made
    finally:
        made.end()
    check_journal(made.logdir)
