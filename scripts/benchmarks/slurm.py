"""Table `slurm`: the time from a kill of a job's task to its next step, under procsv and in a job
that requeues itself.

Called by __main__.py. It uses a real Slurm of four nodes on this machine, with its default times;
the same program runs under procsv's and under TensorFlow's MonitoredTrainingSession. procsv's arm
uses the job script that procsv ships. The other uses a script as people write it: when one task
ends, all do, and the job goes back into the queue, where Slurm keeps it for two minutes.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from procsv.base.journal.entries import StandbyReady
from procsv.base.journal.file import read_journal
from procsv.base.system.system_clock import SystemClock
from scripts.benchmarks.figures import Bar, Column, Figure, Table
from scripts.benchmarks.group_runs import SERVED, WORKER, cluster_of, program_args
from scripts.benchmarks.marks import Mark, Marks
from scripts.benchmarks.processes import ROOT, TrialFailed, environment, procsv_command, scratch
from scripts.benchmarks.runs import FIRST_STEP_S_MAX, kill
from scripts.benchmarks.settings import Arm, Settings
from tests.support.slurm import SlurmCluster, missing_for_slurm

SHIPPED = ROOT / "procsv" / "examples" / "deploy" / "slurm.sbatch"
SAVE_S, TRAIN_S = 10.0, 8.0  # between checkpoints; before the kill
BACK_S_MAX = 400.0  # Slurm's two minutes plus the tasks' starts on a busy machine
SHARE_MAX = 0.1
ARMS: dict[Arm, str] = {"procsv": "procsv launch", "monitored": "tf Monitored, requeued"}
PLAIN = """#!/bin/bash
srun --cpus-per-task=1 --kill-on-bad-exit=1 {command}
code=$?
if [ $code != 0 ]; then scontrol requeue $SLURM_JOB_ID && read -rt 300 <> <(:); fi
exit $code
"""
COLUMNS = (
    Column("arm", "job"),
    Column("seconds", "a worker is killed,\nuntil its next step", "s", 2),
    Column("lost", "steps of all\nthat are lost", "", 0),
)


def measure(settings: Settings) -> Table:
    if why := missing_for_slurm():
        raise TrialFailed(f"slurm: {why}")
    table = Table("slurm", "A chief, two workers, a server as a job of Slurm", COLUMNS)
    found: dict[Arm, list[tuple[float, int]]] = {arm: [] for arm in ARMS}
    repeats = settings.repeats_or(usual=2)
    for repeat in range(repeats):
        for arm, name in ARMS.items():
            settings.say(f"slurm: {name}, {repeat + 1} of {repeats}")
            with _job(arm) as marks:
                found[arm].append(_kill_worker(arm, marks))
    for arm, name in ARMS.items():
        seconds, lost = zip(*found[arm], strict=True)
        table.rows.append({"arm": name, "seconds": Figure.of(seconds), "lost": Figure.of(lost)})
    ours, theirs = (sorted(seconds for seconds, _ in found[arm])[repeats // 2] for arm in ARMS)
    how = f"{SHARE_MAX:g} x {theirs:.1f} s = "
    table.bars.append(Bar.at_most("a task is killed under Slurm", SHARE_MAX * theirs, ours, "s", 2, how))
    return table


@contextlib.contextmanager
def _job(arm: Arm) -> Iterator[dict[str, Marks]]:
    """Run a job until all its tasks train; yield the marks of each."""
    with scratch() as folder, contextlib.ExitStack() as held:
        marks = {task: held.enter_context(Marks(folder / f"marks.{task}")) for task in SERVED.tasks}
        slurm = SlurmCluster()
        slurm.environment.update(environment())
        held.callback(slurm.stop)
        slurm.start()
        more = program_args(mb=4, variables=10, work=1, pause_s=0.02, save_s=SAVE_S)
        args = ["--arm", arm, "--marks", str(folder / "marks"), "--logdir", str(folder / "logdir"), *more]
        job = _submit_ours(slurm, folder, args) if arm == "procsv" else _submit_plain(slurm, folder, args)
        for task, each in marks.items():
            if each.wait_for(lambda _: True, FIRST_STEP_S_MAX) is None:
                raise TrialFailed(f"slurm: {task} does not train: {slurm.job_output(job)[-2000:]}")
        if arm == "procsv":
            _wait_standby(folder / "logdir", marks[WORKER])
        yield marks


def _submit_ours(slurm: SlurmCluster, folder: Path, args: list[str]) -> str:
    (folder / "procsv").write_text(f'#!/bin/sh\nexec {shlex.join(procsv_command())} "$@"\n')
    (folder / "procsv").chmod(0o700)
    program = f"import runpy, sys\nsys.argv[1:] = {args!r}\nrunpy.run_module({SERVED.program!r}, run_name='__main__')\n"
    (folder / "train.py").write_text(program)
    told = {
        "PATH": f"{folder}:{slurm.environment['PATH']}",
        "TARGET": str(folder / "train.py"),
        "PROCSV_HOST": "127.0.0.1",
    }
    return slurm.submit(SHIPPED, "--cpus-per-task=1", "--time=30", LOGDIR=str(folder / "logdir"), **told)


def _submit_plain(slurm: SlurmCluster, folder: Path, args: list[str]) -> str:
    cluster = json.dumps(cluster_of(SERVED.tasks))
    command = [sys.executable, "-m", "scripts.benchmarks.slurm_task", cluster, SERVED.program, *args]
    (folder / "train.sh").write_text(PLAIN.format(command=shlex.join(command)))
    options = ("--requeue", "--open-mode=append", "--nodes=4", "--ntasks=4", "--exclusive", "--time=30")
    return slurm.submit(folder / "train.sh", *options)


def _wait_standby(logdir: Path, marks: Marks) -> None:
    """Wait until the worker's machine has a standby, as it has after the first seconds of any run."""
    clock = SystemClock()
    deadline_s = clock.monotonic() + FIRST_STEP_S_MAX
    while not any(
        isinstance(line.entry, StandbyReady) and line.role == WORKER
        for line in read_journal(logdir / "procsv" / "journal.jsonl")
    ):
        if clock.monotonic() > deadline_s:
            raise TrialFailed(f"slurm: no standby of {WORKER}")
        marks.listen(0.2)


def _kill_worker(arm: Arm, marks: dict[str, Marks]) -> tuple[float, int]:
    """Return the seconds from SIGKILL to the worker's next step, and the global steps that were
    redone.
    """
    for each in marks.values():
        each.listen(TRAIN_S / len(marks))
    pid = marks[WORKER].last.pid
    begun_s, _ = kill(pid)
    first = marks[WORKER].wait_for_another(pid, BACK_S_MAX)
    if first is None:
        raise TrialFailed(f"slurm: {arm}: no new step of {WORKER} within {BACK_S_MAX:g} s")
    for each in marks.values():
        each.listen(0.5)
    trained = [mark for task in SERVED.training for mark in marks[task].all]
    return first.time_s - begun_s, _lost(trained, begun_s)


def _lost(trained: list[Mark], killed_s: float) -> int:
    last = max(mark.step for mark in trained if mark.time_s <= killed_s)
    return max(0, last - min(mark.step for mark in trained if mark.time_s > killed_s) + 1)
