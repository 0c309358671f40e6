"""Tables `monitored` and `hooks`: procsv's MonitoredTrainingSession beside TensorFlow's, on the
same graph.

Called by __main__.py. `monitored` is how long a checkpoint delays the training thread, as in
`stall`. `hooks` is the cost of a call of a trivial graph through a monitored session without hooks,
and with five.
"""

from __future__ import annotations

from collections import defaultdict

from scripts.benchmarks.figures import Bar, Column, Figure, Table
from scripts.benchmarks.processes import Result, run_trial
from scripts.benchmarks.settings import NAMES, Arm, Settings, Trial
from scripts.benchmarks.stall import BIG_MB, COLUMNS, WORK, row

ARMS: tuple[Arm, ...] = ("our_monitored", "monitored")
SIZES_MB, QUICK_SIZES_MB = (200.0, 2000.0), (200.0,)
FIVE = "step counter, summaries, checkpoints, StopAtStep, NanTensor"
HOOK_COUNTS = (0, 5)
MORE_US_MAX = 5.0

CALL_COLUMNS = (
    Column("hooks", "hooks"),
    Column("arm", "session"),
    Column("call_us", "call", "µs"),
    Column("bare_us", "bare, in turns", "µs"),
    Column("more_us", "more", "µs", 2),
)


def measure(settings: Settings) -> Table:
    table = Table("monitored", "What the training thread feels of a monitored session's checkpoint", COLUMNS)
    table.notes.append("columns as in `stall`; save_checkpoint_secs, no summaries, resource variables")
    for mb in QUICK_SIZES_MB if settings.quick else SIZES_MB:
        found: dict[Arm, list[Result]] = defaultdict(list)
        is_big = mb >= BIG_MB
        repeats = settings.repeats_or(usual=1 if is_big else 2)
        for repeat in range(repeats):
            for arm in ARMS:
                settings.say(f"monitored: {mb:g} MB, {NAMES[arm]}, {repeat + 1} of {repeats}")
                found[arm].append(run_trial(_trial(settings, arm, mb)))
        for arm in ARMS:
            table.rows.append({"variables": f"resource, {mb:g} MB", "arm": NAMES[arm], **row(found[arm])})
    return table


def _trial(settings: Settings, arm: Arm, mb: float) -> Trial:
    is_big = mb >= BIG_MB
    return Trial(
        what="train",
        arm=arm,
        mb=mb,
        variables=settings.variables,
        work=WORK,
        seconds=20.0 if is_big else 8.0,
        save_s=8.0 if is_big else 3.0,
        check=True,
    )


def measure_hooks(settings: Settings) -> Table:
    table = Table("hooks", "A call of a trivial graph through a monitored session, nothing due", CALL_COLUMNS)
    table.notes += [f"five: {FIVE}.", "more: than a bare session, within pairs of blocks of calls."]
    repeats = settings.repeats_or(usual=2)
    for hooks in HOOK_COUNTS:
        found: dict[Arm, list[Result]] = defaultdict(list)
        for repeat in range(repeats):
            for arm in ARMS:
                settings.say(f"hooks: {hooks}, {NAMES[arm]}, {repeat + 1} of {repeats}")
                trial = Trial("calls", arm, seconds=2.0 if settings.quick else 3.0, hooks=hooks)
                found[arm].append(run_trial(trial))
        for arm in ARMS:
            figures = {f"{what}_us": _figure(found[arm], what) for what in ("call", "bare", "more")}
            table.rows.append({"hooks": hooks, "arm": NAMES[arm], **figures})
        more = [_figure(found[arm], "more") for arm in ARMS]
        if more[0] is not None and more[1] is not None:
            costs_us = more[0].median - more[1].median
            what = f"cost of a call with {hooks} hooks, above TensorFlow's"
            table.bars.append(Bar.at_most(what, MORE_US_MAX, costs_us, "µs"))
    return table


def _figure(results: list[Result], what: str) -> Figure | None:
    key = {"call": "arm"}.get(what, what)
    return Figure.of(result[key] * 1e6 for result in results)
