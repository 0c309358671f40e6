"""A run of the measured program, started the way its supervisor is started, and killed by the benchmark.

Called by restart.py and idle.py.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmarks.marks import Marks
from scripts.benchmarks.processes import (
    END_S_MAX,
    Result,
    TrialFailed,
    check_nothing_left,
    environment,
    procsv_command,
    scratch,
    started,
    tail,
)
from scripts.benchmarks.settings import Arm

PROGRAM = "scripts.benchmarks.program"
FIRST_STEP_S_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Run:
    """A run that trains."""

    arm: Arm
    process: subprocess.Popen[bytes]  # the watchdog, or the shell
    logdir: Path
    log: Path
    marks: Marks

    def status(self) -> Result:
        """What `procsv status --json` says."""
        answer = subprocess.run(
            procsv_command("status", str(self.logdir), "--json"), env=environment(), capture_output=True, check=False
        )
        if answer.returncode:
            raise TrialFailed(f"procsv status: exit code {answer.returncode}\n{answer.stderr.decode(errors='replace')}")
        found: Result = json.loads(answer.stdout)
        return found

    def failed(self, what: str) -> TrialFailed:
        """An error that shows what the run has printed."""
        logs = sorted((self.logdir / "procsv" / "logs").glob("*.log"))
        shown = [f"-- {log.name}\n{tail(log)}" for log in (self.log, *logs)]
        return TrialFailed("\n".join([f"{self.arm}: {what}", *shown]))

    def stop(self) -> int:
        """Ends a run of procsv as a service manager would, by SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            raise self.failed(f"no end {END_S_MAX:.0f} s after SIGTERM") from None


@contextlib.contextmanager
def running(
    arm: Arm, mb: float, variables: int, work: int, save_s: float, options: tuple[str, ...] = ()
) -> Iterator[Run]:
    """A run that has ended its first step.  `options` are of `procsv launch`.  Gone at the end, however it ends."""
    with scratch() as folder, Marks(folder / "marks") as marks:
        logdir, log = folder / "logdir", folder / "output.log"
        args = ["--arm", arm, "--marks", str(marks.path), "--mb", f"{mb}", "--variables", f"{variables}"]
        args += ["--work", f"{work}", "--save-s", f"{save_s}"]
        if arm == "procsv":
            argv = procsv_command("launch", "--logdir", str(logdir), *options, PROGRAM, *args)
        else:
            program = shlex.join([sys.executable, "-m", PROGRAM, "--logdir", str(logdir), *args])
            argv = ["sh", "-c", f"while ! {program}; do :; done"]
        with started(argv, log, cwd=folder) as process:
            run = Run(arm, process, logdir, log, marks)
            if marks.wait_for(lambda _: True, FIRST_STEP_S_MAX) is None:
                raise run.failed(f"no first step within {FIRST_STEP_S_MAX:.0f} s")
            yield run
        if arm == "procsv" and process.returncode >= 0:  # it ended by itself
            check_nothing_left(logdir)
