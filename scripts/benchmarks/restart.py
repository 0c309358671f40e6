"""Table `restart`: the time from SIGKILL of the trainer to the end of the first new step, and the
steps that it cost.

Called by __main__.py. `procsv launch`, without a standby and with one, is compared with a shell
loop (and, with --keepers, circus and supervisord) that restarts the same program under TensorFlow's
Supervisor. Each repetition is a run of its own, in turns, with KILLS kills at varying moments.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from procsv.base.journal.entries import Exited, Spawned
from procsv.base.journal.file import read_journal
from scripts.benchmarks.figures import Bar, Cell, Column, Figure, Table
from scripts.benchmarks.keepers import SHELL, install
from scripts.benchmarks.processes import scratch
from scripts.benchmarks.runs import Killed, Program, Run, running
from scripts.benchmarks.settings import NAMES, Arm, Settings
from scripts.benchmarks.stall import WORK

MB = 100.0
SAVE_S = 5.0  # between checkpoints, in both arms
SNAPSHOT_S = 1.0  # between procsv's snapshots; fixed, so that the loss is bounded
KILLS, QUICK_KILLS = 2, 1  # in each run
TRAIN_S, TRAIN_MORE_S = 7.0, 5.0  # before each kill; the second is the largest random addition
BOUNDARY_STEPS = 2  # a due snapshot waits for the end of a step, and is complete one step later

SHARE_MAX = 0.35
NOTICED_MS_MAX = 50.0

COLUMNS = (
    Column("arm", "supervisor"),
    Column("seconds", "SIGKILL to the end of\nthe first new step", "s", 2),
    Column("lost_steps", "steps lost", "", 0),
    Column("lost_s", "training lost", "s", 2),
    Column("dead_ms", "SIGKILL\nto dead", "ms", 0),
    Column("noticed_ms", "dead to\nnoticed", "ms"),
    Column("stop_lost_steps", "lost to SIGTERM", "steps", 0),
)


@dataclass(slots=True)
class Found:
    """All kills of one arm."""

    seconds: list[float] = field(default_factory=list)
    lost_steps: list[int] = field(default_factory=list)
    lost_s: list[float] = field(default_factory=list)  # from the restored step to the last, before the kill
    dead_s: list[float] = field(default_factory=list)  # the kernel frees the memory before a process counts as dead
    noticed_s: list[float] = field(default_factory=list)  # from then to the journal's line
    step_s: list[float] = field(default_factory=list)
    stop_lost_steps: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Way:
    """One row: `procsv launch` with a kind of standby, or a process manager with TensorFlow's
    Supervisor.
    """

    arm: Arm
    standby: str = ""
    keeper: str = SHELL
    options_more: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"procsv, standby {self.standby}" if self.arm == "procsv" else f"{self.keeper}, {NAMES[self.arm]}"

    @property
    def options(self) -> tuple[str, ...]:
        if self.arm != "procsv":
            return ()
        return ("--snapshot-secs", f"{SNAPSHOT_S:g}", "--standby", self.standby, *self.options_more)


WARM, LOOP = Way("procsv", "warm"), Way("supervisor")
WAYS = (WARM, Way("procsv", "hot"), Way("procsv", "off"), LOOP)


def measure(settings: Settings) -> Table:
    table = Table("restart", f"SIGKILL of the trainer, {MB:g} MB of resource variables", COLUMNS)
    program = Program(MB, settings.variables, WORK, SAVE_S)
    found: dict[Way, Found] = defaultdict(Found)
    with keepers_of(settings, table) as (tools, keepers):
        ways = (*WAYS, *(Way("supervisor", keeper=keeper) for keeper in keepers))
        repeats = settings.repeats_or(usual=2)
        chance = random.Random(1)  # the same moments in every run of the benchmark, different for each kill
        for repeat in range(repeats):
            kills = QUICK_KILLS if settings.quick else KILLS
            moments_s = [TRAIN_S + TRAIN_MORE_S * chance.random() for _ in range(kills)]
            for way in ways:
                settings.say(f"restart: {way.name}, {repeat + 1} of {repeats}")
                with running(way.arm, program, way.options, way.keeper, tools) as run:
                    _kill_and_wait(run, moments_s, way, found[way])
                    if way.arm == "procsv":
                        _stop(run, found[way])
    table.rows += [_row(way, found[way]) for way in ways]
    table.notes += [
        f"checkpoints every {SAVE_S:g} s; procsv takes snapshots every {SNAPSHOT_S:g} s; the program trains"
        f" {TRAIN_S:g} to {TRAIN_S + TRAIN_MORE_S:g} s before each kill, and until a standby waits, where there is to be one.",
    ]
    table.bars += _bars(found[WARM], found[LOOP])
    return table


@contextlib.contextmanager
def keepers_of(settings: Settings, table: Table) -> Iterator[tuple[Path | None, list[str]]]:
    """Yield where other managers are installed, and which."""
    if not settings.keepers:
        yield None, []
        return
    with scratch() as folder:
        settings.say("restart: installing circus and supervisord into a directory of their own")
        installed = install(folder / "keepers")
        table.notes += [f"{name} could not be installed: {why}" for name, why in installed.items() if why]
        yield folder / "keepers", [name for name, why in installed.items() if not why]


def _kill_and_wait(run: Run, moments_s: list[float], way: Way, found: Found) -> None:
    for moment_s in moments_s:
        run.marks.listen(moment_s)
        if way.standby in ("warm", "hot"):
            run.wait_for_standby()
        run.marks.listen(0.0)
        killed = run.kill()
        before = run.marks.of(killed.pid)
        restored = killed.first.step - 1
        found.seconds.append(killed.first.time_s - killed.begun_s)
        found.dead_s.append(killed.dead_s - killed.begun_s)
        found.lost_steps.append(before[-1].step - restored)
        times = {mark.step: mark.time_s for mark in before}
        found.lost_s.append(before[-1].time_s - times.get(restored, before[0].time_s))
        gaps = [after.time_s - mark.time_s for mark, after in itertools.pairwise(before)]
        found.step_s.append(statistics.median(gaps))
        if run.arm == "procsv":
            found.noticed_s += _noticed_s(run, killed)


def _noticed_s(run: Run, killed: Killed) -> list[float]:
    """Return the time from the death to the journal's line about it; 0.0 if the watchdog was faster
    than we were.
    """
    pids = {}
    for line in read_journal(run.logdir / "procsv" / "journal.jsonl"):
        if isinstance(line.entry, Spawned):
            pids[line.role, line.incarnation] = line.entry.pid
        elif isinstance(line.entry, Exited) and pids.get((line.role, line.incarnation)) == killed.pid:
            return [max(0.0, line.time - killed.dead_wall_s)]
    return []


def _stop(run: Run, found: Found) -> None:
    """Send SIGTERM to the watchdog; count the steps that are not in the last checkpoint."""
    run.marks.listen(3.0)
    code = run.stop()
    run.marks.listen(0.0)
    if code != os.EX_TEMPFAIL:
        raise run.failed(f"exit code {code} after SIGTERM, not {os.EX_TEMPFAIL}")
    saved = (run.logdir / "checkpoint").read_text().splitlines()[0]  # model_checkpoint_path: "…/model.ckpt-N"
    found.stop_lost_steps.append(run.marks.last.step - int(saved.rstrip('"').rpartition("-")[2]))


def _row(way: Way, found: Found) -> dict[str, Cell]:
    return {
        "arm": way.name,
        "seconds": Figure.of(found.seconds),
        "lost_steps": Figure.of(found.lost_steps),
        "lost_s": Figure.of(found.lost_s),
        "dead_ms": Figure.of(seconds * 1e3 for seconds in found.dead_s),
        "noticed_ms": Figure.of(seconds * 1e3 for seconds in found.noticed_s),
        "stop_lost_steps": Figure.of(found.stop_lost_steps),
    }


def _bars(ours: Found, theirs: Found) -> list[Bar]:
    our_s, their_s = statistics.median(ours.seconds), statistics.median(theirs.seconds)
    how = f"{SHARE_MAX} of the shell loop = "
    bars = [
        Bar.at_most("SIGKILL to the end of the first new step, warm standby", SHARE_MAX * their_s, our_s, "s", 2, how)
    ]
    if ours.noticed_s:
        bars.append(Bar.at_most("death noticed", NOTICED_MS_MAX, statistics.median(ours.noticed_s) * 1e3, "ms"))
    steps_max = math.ceil(SNAPSHOT_S / statistics.median(ours.step_s)) + BOUNDARY_STEPS
    what = f"steps lost to SIGKILL, at most (snapshots every {SNAPSHOT_S:g} s)"
    bars.append(Bar.at_most(what, steps_max, max(ours.lost_steps), "steps", 0))
    bars.append(Bar.at_most("steps lost to SIGTERM with grace, at most", 0, max(ours.stop_lost_steps), "steps", 0))
    return bars
