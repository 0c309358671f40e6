"""Run several tasks, started by one `procsv launch` or by a shell loop for each task, and kill
tasks in turn.

Called by group.py.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmarks.keepers import SHELL, keep
from scripts.benchmarks.marks import Mark, Marks
from scripts.benchmarks.processes import (
    TrialFailed,
    check_nothing_left,
    cleared_unless_ended,
    procsv_command,
    scratch,
    started,
    tail,
)
from scripts.benchmarks.runs import FIRST_STEP_S_MAX, kill
from scripts.benchmarks.settings import Arm

CHIEF, WORKER, OTHER, SERVER = "chief.0", "worker.0", "worker.1", "ps.0"
BACK_S_MAX = 150.0  # TensorFlow checks every 30 s whether a model is ready
IN_FLIGHT_S = 0.25  # a step that ended just before a server's death may be marked this much later


@dataclass(frozen=True, slots=True)
class Kind:
    """What is trained, and in which tasks."""

    program: str
    training: tuple[str, ...]  # first the task whose state is saved
    servers: tuple[str, ...]
    options: tuple[str, ...]  # of `procsv launch`

    @property
    def tasks(self) -> tuple[str, ...]:
        return (*self.training, *self.servers)


SERVED = Kind("scripts.benchmarks.group_program", (CHIEF, WORKER, OTHER), (SERVER,), ("--workers", "2", "--ps", "1"))
ALONE = Kind("scripts.benchmarks.group_program", (CHIEF,), (), ())
IN_STEP = Kind("scripts.benchmarks.gang_program", (WORKER, OTHER), (), ("--workers", "2", "--no-chief"))


@dataclass(frozen=True, slots=True)
class Group:
    """The tasks that train. `process`: the watchdog, or one of the shells."""

    kind: Kind
    arm: Arm
    process: subprocess.Popen[bytes]
    logdir: Path
    marks: dict[str, Marks]  # of each task
    logs: tuple[Path, ...]

    def listen(self, seconds: float) -> None:
        """Read all marks that come within `seconds`."""
        self.wait_until(lambda: False, seconds)

    def wait_until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Read marks until `is_so`; False if it does not hold within `seconds`."""
        deadline_s = time.monotonic() + seconds
        while True:
            for marks in self.marks.values():
                marks.listen(0.0)
            if is_so():
                return True
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            select.select(list(self.marks.values()), [], [], left_s)

    def kill(self, task: str) -> tuple[float, float]:
        """Send SIGKILL to `task`; return when it was sent, and when the process was dead."""
        return kill(self.marks[task].last.pid)

    def wait_for_another(self, task: str, pid: int) -> Mark:
        """Return the first mark of the next process of `task`."""
        if not self.wait_until(lambda: self.marks[task].last.pid != pid, BACK_S_MAX):
            raise self.failed(f"no new step of {task} within {BACK_S_MAX:.0f} s")
        return next(mark for mark in self.marks[task].all if mark.pid == self.marks[task].last.pid)

    def wait_for_all(self, after_s: float, but: Collection[int] = ()) -> list[Mark]:
        """Return each training task's first mark after `after_s`, from a process that is not in
        `but`.
        """

        def firsts() -> list[Mark]:
            found = (
                next((mark for mark in self.marks[task].all if mark.time_s > after_s and mark.pid not in but), None)
                for task in self.kind.training
            )
            return [mark for mark in found if mark is not None]

        if not self.wait_until(lambda: len(firsts()) == len(self.kind.training), BACK_S_MAX):
            raise self.failed(f"no new step of all within {BACK_S_MAX:.0f} s")
        return firsts()

    def step_before(self, time_s: float) -> int:
        """Return the last global step that a task had ended by then."""
        return max(mark.step for task in self.kind.training for mark in self.marks[task].all if mark.time_s <= time_s)

    def pauses(self, task: str, from_s: float, to_s: float) -> list[float]:
        """Return the seconds between the marks of `task` that surround or fall into that time."""
        times = [mark.time_s for mark in self.marks[task].all]
        return [after - before for before, after in itertools.pairwise(times) if after > from_s and before < to_s]

    def failed(self, what: str) -> TrialFailed:
        """Return an error that shows what the tasks have printed."""
        logs = (*self.logs, *sorted((self.logdir / "procsv" / "logs").glob("*.log")))
        return TrialFailed("\n".join([f"{self.arm}: {what}", *(f"-- {log.name}\n{tail(log)}" for log in logs)]))


def program_args(**options: object) -> list[str]:
    """Return the program's arguments: `pause_s=0.02` becomes `--pause-s 0.02`."""
    return [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]


@contextlib.contextmanager
def group_running(kind: Kind, arm: Arm, args: list[str], options: tuple[str, ...] = ()) -> Iterator[Group]:
    """Run tasks that train. `options`: options of `procsv launch` in addition to `kind`'s."""
    with scratch() as folder, contextlib.ExitStack() as stack:
        marks = {task: stack.enter_context(Marks(folder / f"marks.{task}")) for task in kind.tasks}
        logdir, more = folder / "logdir", ["--arm", arm, "--marks", str(folder / "marks"), *args]
        stack.enter_context(cleared_unless_ended(logdir))
        if arm == "procsv":
            argv = procsv_command("launch", "--logdir", str(logdir), *kind.options, *options, kind.program, *more)
            logs = [folder / "output.log"]
            process = stack.enter_context(started(argv, logs[0], cwd=folder))
        else:
            argv = keep(SHELL, ["-m", kind.program, "--logdir", str(logdir), *more], folder, None)
            logs, cluster = [folder / f"{task}.log" for task in kind.tasks], cluster_of(kind.tasks)
            process, *_ = [
                stack.enter_context(started(argv, log, cwd=folder, variables={"TF_CONFIG": _config(cluster, task)}))
                for task, log in zip(kind.tasks, logs, strict=True)
            ]
        group = Group(kind, arm, process, logdir, marks, tuple(logs))
        if not group.wait_until(lambda: all(each.all for each in marks.values()), FIRST_STEP_S_MAX):
            raise group.failed(f"not all train within {FIRST_STEP_S_MAX:.0f} s")
        yield group
        if arm == "procsv":
            check_nothing_left(logdir)  # the table has stopped it


def cluster_of(tasks: tuple[str, ...]) -> dict[str, list[str]]:
    """Return an address for each task, with a port that was free a moment ago."""
    cluster: dict[str, list[str]] = {}
    with contextlib.ExitStack() as stack:
        for task in tasks:
            held = stack.enter_context(socket.socket())
            held.bind(("127.0.0.1", 0))
            cluster.setdefault(task.partition(".")[0], []).append(f"127.0.0.1:{held.getsockname()[1]}")
    return cluster


def _config(cluster: dict[str, list[str]], task: str) -> str:
    role, _, index = task.partition(".")
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": int(index)}})
