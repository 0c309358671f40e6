"""Table `cost`: what one checkpoint costs, in time of the steps and in processor time of all
processes.

Called by __main__.py. The time of the steps is measured while training uses all processors.
Processor time is measured while training rests between its steps: the time of the same steps in a
bare session is subtracted, and the rest is the checkpoints'. Snapshots between checkpoints are off,
so each checkpoint pays for its own capture. All arms use the malloc that `procsv launch` gives its
trainers.
"""

from __future__ import annotations

from collections import defaultdict

from scripts.benchmarks.figures import Bar, Chart, Column, Figure, Table
from scripts.benchmarks.processes import KEEP_MALLOC, Result, run_trial
from scripts.benchmarks.settings import NAMES, Arm, Settings, Trial
from scripts.benchmarks.windows import feel

WORK = 10  # matrix products: a step of about 40 ms on two cores
PAUSE_S = 0.25
SIZES_MB = (20.0, 200.0, 2000.0)
BIG_MB = 500
LOST_SHARE_MAX, CPU_SHARE_MAX = 0.2, 1.0
COMPARED: tuple[Arm, ...] = ("procsv", "supervisor", "monitored", "saver")
RESTING: tuple[Arm, ...] = ("bare", *COMPARED)

COLUMNS = (
    Column("mb", "state"),
    Column("arm", "supervisor"),
    Column("lost_ms", "lost a\ncheckpoint", "ms", 0),
    Column("stall_ms", "longest step\nat one", "+ ms", 0),
    Column("cpu_s", "processor time\na checkpoint", "s", 2),
    Column("seconds", "written in", "s", 2),
    Column("count", "checkpoints"),
)


def measure(settings: Settings) -> Table:
    table = Table("cost", "What a checkpoint costs", COLUMNS)
    title = "What training loses to a checkpoint of 200 MB (ms)"
    table.chart = Chart(title, ("arm",), "lost_ms", only=("mb", "200 MB"))
    table.notes.append(
        "lost a checkpoint: what all steps that it overlaps took above the median of the others.  processor time: of all processes "
        "of the run, beyond what the same steps take in a bare session; the kernel's own threads do not count."
    )
    for mb in settings.sizes_mb or SIZES_MB:
        _measure_size(settings, table, mb)
    return table


def _measure_size(settings: Settings, table: Table, mb: float) -> None:
    busy: dict[Arm, list[Result]] = defaultdict(list)
    resting: dict[Arm, list[Result]] = defaultdict(list)
    repeats = settings.repeats_or(usual=3)
    for repeat in range(repeats):
        for arm in RESTING:
            settings.say(f"cost: {mb:g} MB, {NAMES[arm]}, {repeat + 1} of {repeats}")
            if arm != "bare":
                busy[arm].append(run_trial(_trial(arm, mb, settings.variables, 0.0), KEEP_MALLOC))
            resting[arm].append(run_trial(_trial(arm, mb, settings.variables, PAUSE_S), KEEP_MALLOC))
    step_s = Figure.of(result["cpu_s"] / len(result["steps"]) for result in resting["bare"])
    assert step_s is not None
    for arm in COMPARED:
        felt = [feel(result["steps"], result["saves"] + result["snapshots"]) for result in busy[arm]]
        table.rows.append(
            {
                "mb": f"{mb:g} MB",
                "arm": NAMES[arm],
                "lost_ms": Figure.of(lost_s * 1e3 for each in felt for lost_s in each.lost_s),
                "stall_ms": Figure.of(stall_s * 1e3 for each in felt for stall_s in each.stalls_s),
                "cpu_s": Figure.of(_cpu_s(result, step_s.median) for result in resting[arm] if _saves(result)),
                "seconds": Figure.of(seconds for result in busy[arm] for _, seconds in result["written"]),
                "count": sum(map(_saves, busy[arm] + resting[arm])),
            }
        )
    table.bars += _bars(table, mb)


def _trial(arm: Arm, mb: float, variables: int, pause_s: float) -> Trial:
    is_big = mb >= BIG_MB
    return Trial(
        "train",
        arm,
        mb=mb,
        variables=variables,
        work=0 if pause_s else WORK,
        seconds=24.0 if is_big else 9.0,
        save_s=7.0 if is_big else 2.0,
        pause_s=pause_s,
        between=False,
        cpu=True,
    )


def _cpu_s(result: Result, step_s: float) -> float:
    return float((result["cpu_s"] - len(result["steps"]) * step_s) / _saves(result))


def _saves(result: Result) -> int:
    """Return how many checkpoints were begun while steps were counted, without the first and last
    of a session.
    """
    begun_s, ended_s = result["steps"][0][0], result["steps"][-1][1]
    return sum(begun_s <= save_s <= ended_s for save_s, _ in result["saves"])


def _bars(table: Table, mb: float) -> list[Bar]:
    rows = {str(row["arm"]): row for row in table.rows if row["mb"] == f"{mb:g} MB"}

    def bar(key: str, what: str, arm: Arm, share: float, unit: str, digits: int) -> list[Bar]:
        ours, theirs = rows[NAMES["procsv"]][key], rows[NAMES[arm]][key]
        if not isinstance(ours, Figure) or not isinstance(theirs, Figure):
            return []
        how = f"{share:g} of {NAMES[arm]} = "
        return [Bar.at_most(f"{what}, {mb:g} MB", share * theirs.median, ours.median, unit, digits, how)]

    lost = bar("lost_ms", "lost a checkpoint", "monitored", LOST_SHARE_MAX, "ms", 0)
    return lost + bar("cpu_s", "processor time of a checkpoint", "saver", CPU_SHARE_MAX, "s", 2)
