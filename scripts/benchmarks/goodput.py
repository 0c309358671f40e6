"""Table `goodput`: what is left of a training whose program is killed again and again.

Called by __main__.py.  Each arm trains the same graph for the same time, start-up included, and is killed at the same
moments; goodput is the time that a bare session would have needed for the steps that are left, as a share of that time.
Bare sessions train before and after the arms: what a supervisor costs a step counts against it.  Beside
`procsv launch` a shell loop under TensorFlow's Supervisor, with its default of one checkpoint every 10 minutes and with one
every 10 s.
"""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass, field

from scripts.benchmarks.figures import Cell, Column, Figure, Table, in_words
from scripts.benchmarks.runs import Program, Run, running
from scripts.benchmarks.settings import NAMES, Arm, Settings
from scripts.benchmarks.stall import WORK

MB = 100.0
PACE_S = 15.0  # of a bare session, before and after the arms

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


WAYS = (
    Way("procsv", "procsv", 600.0),
    Way(f"shell loop, {NAMES['supervisor']}, checkpoints every 10 s", "supervisor", 10.0),
    Way(f"shell loop, {NAMES['supervisor']}, every 600 s", "supervisor", 600.0),
)


@dataclass(slots=True)
class Found:
    """What one run came to."""

    wall_s: float = 0.0
    steps: int = 0
    seconds: list[float] = field(default_factory=list)  # from a kill to the end of the first new step
    lost_steps: list[int] = field(default_factory=list)


def measure(settings: Settings) -> Table:
    table = Table("goodput", f"Goodput under kills, {MB:g} MB of resource variables", COLUMNS)
    for every_s in settings.every_s:
        founds, pace = [], _pace(settings)
        for way in WAYS:
            settings.say(f"goodput: killed every {every_s:g} s, {way.name}")
            begun_s = time.monotonic()
            with running(way.arm, Program(MB, settings.variables, WORK, way.save_s)) as run:
                found = _train(run, begun_s, every_s, settings.kills)
                if way.arm == "procsv":
                    run.stop()
            founds.append(found)
            settings.say(in_words(_row(way, every_s, found, statistics.median(pace)), COLUMNS))
        step_s = statistics.median(pace + _pace(settings))
        table.rows += [_row(way, every_s, found, step_s) for way, found in zip(WAYS, founds, strict=True)]
        table.notes.append(f"killed every {every_s:g} s: a bare session's step takes {1000 * step_s:.1f} ms.")
    table.notes.append(
        f"kills in each run: {settings.kills}.  It goes on after the last for as long again as between two kills."
    )
    return table


def _train(run: Run, begun_s: float, every_s: float, kills: int) -> Found:
    found = Found()
    for number in range(1, kills + 2):
        run.marks.listen(max(0.0, begun_s + number * every_s - time.monotonic()))
        if number <= kills:
            last = run.marks.last.step
            killed = run.kill()
            found.seconds.append(killed.first.time_s - killed.begun_s)
            found.lost_steps.append(max(0, last - (killed.first.step - 1)))
    found.wall_s, found.steps = time.monotonic() - begun_s, run.marks.last.step
    return found


def _pace(settings: Settings) -> list[float]:
    """Seconds of each step of a bare session."""
    settings.say(f"goodput: {NAMES['bare']}")
    with running("bare", Program(MB, settings.variables, WORK, save_s=0.0)) as run:
        run.marks.listen(PACE_S)
        return [b.time_s - a.time_s for a, b in itertools.pairwise(run.marks.all)]


def _row(way: Way, every_s: float, found: Found, step_s: float) -> dict[str, Cell]:
    return {
        "every": Figure.of([every_s]),
        "arm": way.name,
        "goodput": Figure.of([100 * found.steps * step_s / found.wall_s]),
        "steps": Figure.of([found.steps]),
        "seconds": Figure.of(found.seconds),
        "lost_steps": Figure.of(found.lost_steps),
    }
