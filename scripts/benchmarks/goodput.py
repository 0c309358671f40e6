"""Table `goodput`: how much training remains when the program is killed again and again.

Called by __main__.py. Each arm trains the same graph for the same time, from the end of its first
step, and is killed at the same moments. Goodput is the time that a bare session would have needed
for the steps that are kept, as a share of that time. The first start is measured by the table
launch: it happens once, however long a training lasts.

Bare sessions train before and after each turn of the arms, with the malloc that `procsv launch`
gives its trainers, so what a supervisor costs per step counts against it. `procsv launch` as
installed is compared with a shell loop (and, with --keepers, circus and supervisord) under
TensorFlow's Supervisor, with one checkpoint every 10 s, and with its default of one every 10
minutes (except for kills every 10 minutes, which would coincide with the checkpoint). The arms take
turns, as often as there are repeats.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.benchmarks.figures import Bar, Cell, Chart, Column, Figure, Table, in_words
from scripts.benchmarks.keepers import SHELL
from scripts.benchmarks.processes import KEEP_MALLOC
from scripts.benchmarks.restart import keepers_of
from scripts.benchmarks.runs import Program, Run, running
from scripts.benchmarks.settings import NAMES, Arm, Settings
from scripts.benchmarks.stall import WORK

MB = 100.0
PACE_S = 30.0  # of a bare session, between the arms' turns

COLUMNS = (
    Column("every", "killed every", "s", 0),
    Column("arm", "supervisor"),
    Column("goodput", "goodput", "%"),
    Column("steps", "steps kept", "", 0),
    Column("seconds", "back after", "s", 2),
    Column("lost_steps", "steps lost to a kill", "", 0),
)


@dataclass(frozen=True, slots=True)
class Way:
    """One row."""

    name: str
    arm: Arm
    save_s: float
    keeper: str = SHELL

    def is_told_by(self, every_s: float) -> bool:
        """False for kills that coincide with its checkpoint: whether the checkpoint is complete by
        then is chance.
        """
        return self.arm == "procsv" or self.save_s != every_s


WAYS = (
    Way("procsv", "procsv", 600.0),
    Way(f"shell loop, {NAMES['supervisor']}, checkpoints every 10 s", "supervisor", 10.0),
    Way(f"shell loop, {NAMES['supervisor']}, every 600 s", "supervisor", 600.0),
)
SHARES_MIN = {30.0: 0.93, 120.0: 0.97, 600.0: 0.99}  # relative to a bare session, by the seconds between two kills


@dataclass(slots=True)
class Found:
    """The results of all runs of one arm."""

    wall_s: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # from a kill to the end of the first new step
    lost_steps: list[int] = field(default_factory=list)


def measure(settings: Settings) -> Table:
    table = Table("goodput", f"Goodput under kills, {MB:g} MB of resource variables", COLUMNS)
    table.chart = Chart("Goodput: share of a bare session's steps that is left (%)", ("every", "arm"), "goodput", 1)
    with keepers_of(settings, table) as (tools, keepers):
        ways = (*WAYS, *(Way(f"{name}, checkpoints every 10 s", "supervisor", 10.0, name) for name in keepers))
        for every_s in settings.every_s:
            _measure_row(settings, table, every_s, [way for way in ways if way.is_told_by(every_s)], tools)
    table.notes.append(
        f"kills in each run: {settings.kills}.  It goes on after the last for as long again as between two kills."
    )
    return table


def _measure_row(settings: Settings, table: Table, every_s: float, ways: Sequence[Way], tools: Path | None) -> None:
    founds, pace, repeats = {way: Found() for way in ways}, _pace(settings), settings.repeats_or(usual=2)
    for repeat in range(repeats):
        for way, found in founds.items():
            settings.say(f"goodput: killed every {every_s:g} s, {way.name}, {repeat + 1} of {repeats}")
            program = Program(MB, settings.variables, WORK, way.save_s)
            with running(way.arm, program, keeper=way.keeper, tools=tools) as run:
                _train(run, every_s, settings.kills, found)
                if way.arm == "procsv":
                    run.stop()
            settings.say(in_words(_row(way, every_s, found, statistics.fmean(pace)), COLUMNS))
        pace += _pace(settings)
    step_s = statistics.fmean(pace)  # not the median, because the arms' long steps count, too
    rows = {way: _row(way, every_s, found, step_s) for way, found in founds.items()}
    table.rows += rows.values()
    table.notes.append(f"killed every {every_s:g} s: a bare session's step takes {1000 * step_s:.1f} ms.")
    ours, *others = (_goodput(found, step_s) for found in founds.values())
    if every_s in SHARES_MIN:
        least = 100 * SHARES_MIN[every_s]
        table.bars.append(Bar.at_least(f"goodput, killed every {every_s:g} s", least, ours, "%", 1))
    table.bars.append(Bar.at_least(f"the same against the best peer, every {every_s:g} s", max(others), ours, "%", 1))


def _train(run: Run, every_s: float, kills: int, found: Found) -> None:
    begun_s, first = run.marks.all[0].time_s, run.marks.all[0].step
    for number in range(1, kills + 2):
        run.marks.listen(max(0.0, begun_s + number * every_s - time.monotonic()))
        if number <= kills:
            last = run.marks.last.step
            killed = run.kill()
            found.seconds.append(killed.first.time_s - killed.begun_s)
            found.lost_steps.append(max(0, last - (killed.first.step - 1)))
    found.wall_s.append(time.monotonic() - begun_s)
    found.steps.append(run.marks.last.step - first)


def _pace(settings: Settings) -> list[float]:
    """Return the seconds of each step of a bare session."""
    settings.say(f"goodput: {NAMES['bare']}")
    with running("bare", Program(MB, settings.variables, WORK, save_s=0.0), variables=KEEP_MALLOC) as run:
        run.marks.listen(PACE_S)
        return [b.time_s - a.time_s for a, b in itertools.pairwise(run.marks.all)]


def _goodput(found: Found, step_s: float) -> float:
    """In percent."""
    return statistics.median(
        100 * steps * step_s / wall_s for steps, wall_s in zip(found.steps, found.wall_s, strict=True)
    )


def _row(way: Way, every_s: float, found: Found, step_s: float) -> dict[str, Cell]:
    return {
        "every": Figure.of([every_s]),
        "arm": way.name,
        "goodput": Figure.of(
            100 * steps * step_s / wall_s for steps, wall_s in zip(found.steps, found.wall_s, strict=True)
        ),
        "steps": Figure.of(found.steps),
        "seconds": Figure.of(found.seconds),
        "lost_steps": Figure.of(found.lost_steps),
    }
