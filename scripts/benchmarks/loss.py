"""Table `loss`: how much training a SIGKILL costs with automatic snapshots, by the size of the
model.

Called by __main__.py. It uses `procsv launch` as installed. After some seconds, in which the
interval settles, the trainer is killed at varying moments.
"""

from __future__ import annotations

import random

from scripts.benchmarks.figures import Bar, Column, Figure, Table
from scripts.benchmarks.runs import Program, running
from scripts.benchmarks.settings import Settings
from scripts.benchmarks.stall import WORK

LOST_S_MAX = {1.0: 0.2, 200.0: 2.0}  # seconds of training, by MB
KILLS, QUICK_KILLS = 8, 3
SETTLE_S, MORE_S = 12.0, 4.0  # before each kill; the second is the largest random addition
SAVE_S = 600.0

COLUMNS = (
    Column("mb", "model", "MB", 0),
    Column("lost_s", "training lost", "s", 2),
    Column("lost_steps", "steps lost", "", 0),
    Column("interval_s", "snapshots every", "s", 2),
)


def measure(settings: Settings) -> Table:
    table = Table("loss", "What a SIGKILL costs, with automatic snapshots", COLUMNS)
    chance = random.Random(3)
    for mb, limit_s in LOST_S_MAX.items():
        settings.say(f"loss: {mb:g} MB")
        lost_s, lost_steps, intervals_s = list[float](), list[int](), list[float]()
        with running("procsv", Program(mb, settings.variables, WORK, SAVE_S)) as run:
            for _ in range(QUICK_KILLS if settings.quick else KILLS):
                run.marks.listen(SETTLE_S + MORE_S * chance.random())
                intervals_s.append(run.status()["snapshots"]["interval"])
                run.marks.listen(0.0)
                killed = run.kill()
                before = run.marks.of(killed.pid)
                times = {mark.step: mark.time_s for mark in before}
                restored = killed.first.step - 1
                lost_steps.append(before[-1].step - restored)
                lost_s.append(before[-1].time_s - times.get(restored, before[0].time_s))
            run.stop()
        table.rows.append(
            {
                "mb": Figure.of([mb]),
                "lost_s": Figure.of(lost_s),
                "lost_steps": Figure.of(lost_steps),
                "interval_s": Figure.of(intervals_s),
            }
        )
        table.bars.append(Bar.at_most(f"training lost to SIGKILL, {mb:g} MB, at most", limit_s, max(lost_s), "s", 2))
    return table
