"""A run of several launches, one a task, as on several machines: real processes, told by TF_CONFIG who they are."""

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

PORT = 2222  # of the task of a machine of its own
WAITS = """
import os, pathlib, threading
print("I am", os.environ["PROCSV_TASK"], flush=True)
end = pathlib.Path(os.environ["PROCSV_LOGDIR"]) / "end"
while os.environ["PROCSV_TASK"] != "chief" or not end.exists():
    threading.Event().wait(0.05)
"""  # a program that trains nothing; its chief ends once somebody has made that file


M = TypeVar("M", bound="Machines")


class Machines:
    """The launches by their tasks; the first one's coordinates.  Each prints to a file of its own."""

    def __init__(
        self,
        directory: Path,
        tasks: Sequence[str],
        args: Sequence[str],
        variables: Mapping[str, str],
        hosts: Sequence[OwnMachine] = (),
    ) -> None:
        """`hosts`: where each launch is; none: all on this machine.  With `--cluster slurm` they are told their tasks as srun does."""
        self._in_step = "slurm" in args
        self.logdir, self._args, self._directory = directory / "run", args, directory
        self._env = {**PYTHONPATH, **variables}
        self.tasks = [TaskId.parse(task) for task in tasks]  # launches without one are among them, as spare.0
        self._ports, self._hosts = HeldPorts(), dict(zip(self.tasks, hosts, strict=bool(hosts)))
        told = {task: f"{host.address}:{PORT}" for task, host in self._hosts.items() if needs_address(task)}
        self._cluster = make_cluster(told or self._ports.hold(self.tasks))
        self._started: list[Launched] = []
        self.launches: dict[str, Launched] = {}

    def launch(
        self, task: str, *more: str, launcher: Sequence[str] = (), within: Sequence[str] = (), **env: str
    ) -> Launched:
        """Starts that task's `procsv launch`; `more` goes before the other arguments.

        `launcher`: the command in the place of `procsv launch --logdir`.  `within`: as of `launched`.  `env`: of this launch alone.
        """
        number = sum(path.is_symlink() for path in self._directory.iterdir())
        place = self._directory / f"{task}.{number}"
        which = TaskId.parse(task)
        place.symlink_to(self.place_of(which))  # a name of its own for what it prints
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
        """From now on that task is launched there."""
        self._hosts[TaskId.parse(task)] = host

    def _step(self, task: TaskId) -> dict[str, str]:
        rank, ranks = str(self.tasks.index(task)), str(len(self.tasks))
        return {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": ranks, "SLURM_PROCID": rank}

    launcher: tuple[str, ...] = ()  # in the place of `procsv launch --logdir`

    def place_of(self, task: TaskId) -> Path:
        """The directory in which that launch has the files of its run; other launches may have others."""
        return self.logdir

    def own_variables(self, task: TaskId) -> dict[str, str]:
        """What its environment has, and those of other launches have not."""
        return {}

    def launch_all(self) -> Launched:
        """All of them, the coordinator last: it is no matter who comes first."""
        for task in reversed(self.tasks):
            self.launch(str(task))
        return self.launches[str(self.tasks[0])]

    def codes(self) -> dict[str, int]:
        """The exit codes of the launches, once all have ended."""
        return {task: launch.wait_end() for task, launch in self.launches.items()}

    def is_stopped_unsaved(self, *tasks: str) -> bool:
        """Whether those launches, or all, end with one code, which promises nobody that the same command resumes."""
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
    """Launches of `target` (`program`) with these options, which a test starts; ended, processes and all, with the block."""
    (directory / "train.py").write_text(program)
    with launches_of(Machines(directory, tasks, (*args, *target), env, hosts)) as made:
        yield made


@contextlib.contextmanager
def launches_of(made: M) -> Iterator[M]:
    """For launches of another kind, whose program somebody has written."""
    made.logdir.mkdir(exist_ok=True)
    try:
        yield made
    finally:
        made.end()
    check_journal(made.logdir)
