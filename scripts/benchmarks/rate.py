"""Table `rate`: steps per second with snapshots at procsv's own cadence, compared with a bare
session.

Called by __main__.py. The two take turns, in processes of their own.
"""

from __future__ import annotations

from collections import defaultdict

from scripts.benchmarks.figures import Bar, Cell, Column, Figure, Table
from scripts.benchmarks.processes import run_trial
from scripts.benchmarks.settings import NAMES, Arm, Settings, Trial
from scripts.benchmarks.stall import WORK

SECONDS = 60.0  # per arm, over all repeats
QUICK_SECONDS = 10.0
SAVE_S = 30.0
MB = 200.0
SHARE_MIN = 0.98

COLUMNS = (
    Column("arm", "supervisor"),
    Column("steps_per_s", "steps/s", "", 2),
    Column("share", "of a bare session", "", 3),
    Column("snapshots", "snapshots"),
    Column("checkpoints", "on disk"),
)


def measure(settings: Settings) -> Table:
    table = Table("rate", f"Steps per second with automatic snapshots, {MB:g} MB of resource variables", COLUMNS)
    repeats = settings.repeats_or(usual=2)
    seconds = (QUICK_SECONDS if settings.quick else SECONDS) / repeats
    arms: tuple[Arm, ...] = ("bare", "procsv")
    rates: dict[Arm, list[float]] = defaultdict(list)
    snapshots = checkpoints = 0
    for repeat in range(repeats):
        for arm in arms:
            settings.say(f"rate: {NAMES[arm]}, {repeat + 1} of {repeats}")
            save_s = min(SAVE_S, seconds / 2)
            trial = Trial("train", arm, mb=MB, variables=settings.variables, work=WORK, seconds=seconds, save_s=save_s)
            result = run_trial(trial)
            steps = result["steps"]
            rates[arm].append(len(steps) / (steps[-1][1] - steps[0][0]))
            snapshots += len(result["snapshots"])
            checkpoints += len(result["saves"])
    shares = [ours / bare for ours, bare in zip(rates["procsv"], rates["bare"], strict=True)]
    for arm in arms:
        row: dict[str, Cell] = {"arm": NAMES[arm], "steps_per_s": Figure.of(rates[arm])}
        if arm == "procsv":
            row |= {"share": Figure.of(shares), "snapshots": snapshots, "checkpoints": checkpoints}
        table.rows.append(row)
    table.notes.append("A difference between two bare sessions is of the same kind: compare the spread.")
    share = sum(rates["procsv"]) / sum(rates["bare"])
    table.bars.append(
        Bar.at_least("steps per second with automatic snapshots", SHARE_MIN, share, "of a bare session", 3)
    )
    return table
