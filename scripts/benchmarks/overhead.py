"""Table `overhead`: the cost of a call of a trivial graph, compared with a bare session on the same
graph.

Called by __main__.py. In each process the arm's session and a bare one take turns, 250 calls each.
"""

from __future__ import annotations

from collections import defaultdict

from scripts.benchmarks.figures import Bar, Column, Figure, Table
from scripts.benchmarks.processes import Result, run_trial
from scripts.benchmarks.settings import ARMS, NAMES, Arm, Settings, Trial

OVERHEAD_US_MAX = 5.0

COLUMNS = (
    Column("arm", "supervisor"),
    Column("call_us", "call", "µs"),
    Column("bare_us", "bare, in turns", "µs"),
    Column("more_us", "more", "µs", 2),
    Column("calls", "calls"),
)


def measure(settings: Settings) -> Table:
    table = Table("overhead", "A call of session.run of a trivial graph, no snapshot due", COLUMNS)
    repeats = settings.repeats_or(usual=2)
    found: dict[Arm, list[Result]] = defaultdict(list)
    arms: tuple[Arm, ...] = ("bare", *ARMS)
    for repeat in range(repeats):
        for arm in arms:
            settings.say(f"overhead: {NAMES[arm]}, {repeat + 1} of {repeats}")
            trial = Trial("calls", arm, seconds=2.0 if settings.quick else 3.0)
            found[arm].append(run_trial(trial))
    for arm in arms:
        results = found[arm]
        table.rows.append(
            {
                "arm": NAMES[arm],
                "call_us": Figure.of(result["arm"] * 1e6 for result in results),
                "bare_us": Figure.of(result["bare"] * 1e6 for result in results),
                "more_us": _more_us(results),
                "calls": sum(result["calls"] for result in results),
            }
        )
    table.notes.append(
        "more: the difference within pairs of blocks of calls.  Medians of each process; the spread is over processes."
    )
    more_us = _more_us(found["procsv"])
    if more_us is not None:
        table.bars.append(Bar.at_most("cost of a step, no snapshot due", OVERHEAD_US_MAX, more_us.median, "µs"))
    return table


def _more_us(results: list[Result]) -> Figure | None:
    return Figure.of(result["more"] * 1e6 for result in results)
