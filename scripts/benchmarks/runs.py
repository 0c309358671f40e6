"""Run the measured program, started as its supervisor is usually started, and killed by the
benchmark.

Called by restart.py and idle.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from procsv.base.system.system_clock import SystemClock
from scripts.benchmarks.keepers import SHELL, keep
from scripts.benchmarks.marks import Mark, Marks
from scripts.benchmarks.processes import (
    END_S_MAX,
    Result,
    TrialFailed,
    check_nothing_left,
    cleared_unless_ended,
    environment,
    procsv_command,
    scratch,
    started,
    tail,
)
from scripts.benchmarks.settings import Arm, Kind

PROGRAM = "scripts.benchmarks.program"
FIRST_STEP_S_MAX = 120.0
STANDBY_S_MAX = 120.0
RESTART_S_MAX = 90.0


@dataclass(frozen=True, slots=True)
class Killed:
    """A trainer that was killed at `begun_s` and dead at `dead_s`; `first` is the mark of the next
    trainer's first step.
    """

    pid: int
    begun_s: float
    dead_s: float
    dead_wall_s: float
    first: Mark


def kill(pid: int) -> tuple[float, float]:
    """Send SIGKILL to process `pid`; return when it was sent, and when the process was dead
    (monotonic).
    """
    pidfd = os.pidfd_open(pid)
    try:
        begun_s = time.monotonic()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        select.select([pidfd], [], [], RESTART_S_MAX)
        return begun_s, time.monotonic()
    finally:
        os.close(pidfd)


def status_of(logdir: Path) -> Result:
    """Return `procsv status --json`."""
    answer = subprocess.run(
        procsv_command("status", str(logdir), "--json"), env=environment(), capture_output=True, check=False
    )
    if answer.returncode:
        raise TrialFailed(f"procsv status: exit code {answer.returncode}\n{answer.stderr.decode(errors='replace')}")
    found: Result = json.loads(answer.stdout)
    return found


@dataclass(frozen=True, slots=True)
class Run:
    """A run that trains."""

    arm: Arm
    process: subprocess.Popen[bytes]  # the watchdog, or the shell
    logdir: Path
    log: Path
    marks: Marks
    notes: Path

    def kill(self) -> Killed:
        """Send SIGKILL to the trainer; return when the first new step has ended."""
        pid = self.marks.last.pid
        begun_s, dead_s = kill(pid)
        dead_wall_s = SystemClock().wall()
        first = self.marks.wait_for_another(pid, RESTART_S_MAX)
        if first is None:
            raise self.failed(f"no new step within {RESTART_S_MAX:.0f} s after SIGKILL")
        return Killed(pid, begun_s, dead_s, dead_wall_s, first)

    def cpu_s(self, besides: int) -> float:
        """Return the CPU seconds of all live processes of the run, except process `besides`."""
        watched, seconds = psutil.Process(self.process.pid), 0.0
        for process in (watched, *watched.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                if process.pid != besides:
                    times = process.cpu_times()
                    seconds += times.user + times.system
        return seconds

    def restores(self, pid: int) -> list[Result]:
        """Return what process `pid` reported about its restores."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [note for note in map(json.loads, lines) if note["pid"] == pid]

    def status(self) -> Result:
        """Return `procsv status --json`."""
        return status_of(self.logdir)

    def wait_for_standby(self) -> None:
        """Wait until a standby is ready; training continues."""
        deadline_s = time.monotonic() + STANDBY_S_MAX
        while not any(row["role"] == "standby" and row["state"] == "waiting" for row in self.status()["processes"]):
            self.marks.listen(0.5)
            if time.monotonic() > deadline_s:
                raise self.failed(f"no standby within {STANDBY_S_MAX:.0f} s")

    def failed(self, what: str) -> TrialFailed:
        """Return an error that shows what the run has printed."""
        logs = sorted((self.logdir / "procsv" / "logs").glob("*.log"))
        shown = [f"-- {log.name}\n{tail(log)}" for log in (self.log, *logs)]
        return TrialFailed("\n".join([f"{self.arm}: {what}", *shown]))

    def stop(self) -> int:
        """End a procsv run with SIGTERM, as a service manager would; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            raise self.failed(f"no end {END_S_MAX:.0f} s after SIGTERM") from None


class Measured(Protocol):
    """What is trained: a module, and its arguments."""

    @property
    def module(self) -> str: ...

    def args(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Program:
    """What is trained."""

    mb: float
    variables: int
    work: int
    save_s: float
    kind: Kind = "resource"
    again: bool = False  # what is restored from memory is restored once more
    module: str = PROGRAM

    def args(self) -> list[str]:
        shape = [
            "--mb",
            f"{self.mb}",
            "--variables",
            f"{self.variables}",
            "--kind",
            self.kind,
            "--work",
            f"{self.work}",
        ]
        return [*shape, "--save-s", f"{self.save_s}", *(["--again"] if self.again else [])]


@contextlib.contextmanager
def running(
    arm: Arm,
    program: Measured,
    options: tuple[str, ...] = (),
    keeper: str = SHELL,
    tools: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Run]:
    """Run a program and wait for its first step; end it with the block. A procsv run must be
    stopped before that.

    `options`: of `procsv launch`. `keeper`: restarts any other arm. `variables`: added to its
    environment.
    """
    with scratch() as folder, Marks(folder / "marks") as marks:
        logdir, log = folder / "logdir", folder / "output.log"
        args = ["--arm", arm, "--marks", str(marks.path), "--notes", str(folder / "notes"), *program.args()]
        if arm == "procsv":
            argv = procsv_command("launch", "--logdir", str(logdir), *options, program.module, *args)
        else:
            argv = keep(keeper, ["-m", program.module, "--logdir", str(logdir), *args], folder, tools)
        with cleared_unless_ended(logdir), started(argv, log, cwd=folder, variables=variables) as process:
            run = Run(arm, process, logdir, log, marks, folder / "notes")
            if marks.wait_for(lambda _: True, FIRST_STEP_S_MAX) is None:
                raise run.failed(f"no first step within {FIRST_STEP_S_MAX:.0f} s")
            yield run
        if arm == "procsv":
            check_nothing_left(logdir)  # the table has stopped it
