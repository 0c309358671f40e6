"""Table `storm`: ten kills in a row, each a moment after training has begun again.

Called by __main__.py. `procsv launch` with automatic snapshots, with a standby and without, is
compared with a shell loop (and, with --keepers, circus and supervisord) that restarts the same
program under TensorFlow's Supervisor, in turns. The kills do not wait for a standby: the first ones
come before there can be one.
"""

from __future__ import annotations

import random
import statistics
from collections import defaultdict

from scripts.benchmarks.figures import Bar, Cell, Column, Figure, Table
from scripts.benchmarks.restart import LOOP, SAVE_S, Way, keepers_of
from scripts.benchmarks.runs import Program, running
from scripts.benchmarks.settings import Settings
from scripts.benchmarks.stall import WORK

MB = 10.0
KILLS, QUICK_KILLS = 10, 3
FROM_S, TO_S = 0.2, 1.2  # from the first new step to the next kill
SHARE_MAX, WORST_SHARE_MAX = 0.35, 0.6  # of the shell loop's median; the worst, except the first kill
CPU_S_MAX = 1.0

WARM = Way(
    "procsv", "warm", options_more=("--snapshot-secs", "auto", "--max-failures", "100")
)  # a trainer killed in its first second may save nothing
WAYS = (WARM, Way("procsv", "off", options_more=WARM.options_more), LOOP)

COLUMNS = (
    Column("arm", "supervisor"),
    Column("first", "first kill to\na new step", "s", 2),
    Column("second", "second kill", "s", 2),
    Column("later", "later kills", "s", 2),
    Column("all", "all of them", "s", 2),
    Column("cpu", "CPU for one", "s", 2),
)


def measure(settings: Settings) -> Table:
    table = Table("storm", f"{KILLS} kills, each {FROM_S:g} to {TO_S:g} s after training has begun, {MB:g} MB", COLUMNS)
    program = Program(MB, settings.variables, WORK, SAVE_S)
    found: dict[Way, list[list[float]]] = defaultdict(list)
    cpus: dict[Way, list[float]] = defaultdict(list)
    with keepers_of(settings, table) as (tools, keepers):
        ways = (*WAYS, *(Way("supervisor", keeper=keeper) for keeper in keepers))
        chance = random.Random(2)
        repeats = settings.repeats_or(usual=2)
        for repeat in range(repeats):
            moments_s = [
                FROM_S + (TO_S - FROM_S) * chance.random() for _ in range(QUICK_KILLS if settings.quick else KILLS)
            ]
            for way in ways:
                settings.say(f"storm: {way.name}, {repeat + 1} of {repeats}")
                with running(way.arm, program, way.options, way.keeper, tools) as run:
                    seconds = []
                    for moment_s in moments_s:
                        run.marks.listen(moment_s)
                        trainer = run.marks.last.pid
                        before_s = run.cpu_s(besides=trainer)
                        killed = run.kill()
                        seconds.append(killed.first.time_s - killed.begun_s)
                        cpus[way].append(run.cpu_s(besides=trainer) - before_s)
                    found[way].append(seconds)
                    if way.arm == "procsv":
                        run.stop()
    table.rows += [_row(way, found[way]) | {"cpu": Figure.of(cpus[way])} for way in ways]
    ours, theirs = _all(found[WARM]), statistics.median(_all(found[LOOP]))
    how = "{} of the shell loop's median = "
    table.bars += [
        Bar.at_most(
            "kill to a new step in a storm, median",
            SHARE_MAX * theirs,
            statistics.median(ours),
            "s",
            2,
            how.format(SHARE_MAX),
        ),
        Bar.at_most(
            "kill to a new step in a storm, worst after the first kill",
            WORST_SHARE_MAX * theirs,
            max(_all([storm[1:] for storm in found[WARM]])),
            "s",
            2,
            how.format(WORST_SHARE_MAX),
        ),
        Bar.at_most("CPU of all processes from a kill to a new step", CPU_S_MAX, statistics.median(cpus[WARM]), "s", 2),
    ]
    return table


def _all(storms: list[list[float]]) -> list[float]:
    return [seconds for storm in storms for seconds in storm]


def _row(way: Way, storms: list[list[float]]) -> dict[str, Cell]:
    return {
        "arm": way.name,
        "first": Figure.of(storm[0] for storm in storms),
        "second": Figure.of(storm[1] for storm in storms),
        "later": Figure.of(seconds for storm in storms for seconds in storm[2:]),
        "all": Figure.of(_all(storms)),
    }
