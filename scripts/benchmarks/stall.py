"""Table `stall`: how long a checkpoint delays the training thread.

Called by __main__.py. Each row trains the same graph for some seconds with a checkpoint every few;
the arms of a row take turns, each in processes of their own.
"""

from __future__ import annotations

from collections import defaultdict

from scripts.benchmarks.figures import Bar, Cell, Column, Figure, Table, in_words
from scripts.benchmarks.processes import Result, run_trial
from scripts.benchmarks.save import written_mb_s
from scripts.benchmarks.settings import ARMS, NAMES, Arm, Kind, Settings, Trial
from scripts.benchmarks.windows import feel

WORK = 10  # matrix products: a step of about 40 ms on two cores
BIG_MB = 500  # from this size on, a checkpoint takes seconds to write: longer trials, fewer repeats
SMALL_MB = 50  # up to this size, there is little to measure

COMPARED: tuple[Arm, ...] = (*ARMS, "saver")

RESOURCE_STALL_MS, RESOURCE_STALL_US_PER_VARIABLE = 2.0, 1.5
REF_COPIES = 1.3

COLUMNS = (
    Column("variables", "variables"),
    Column("arm", "supervisor"),
    Column("step_ms", "step", "ms", 0),
    Column("stall_ms", "longest step at\na checkpoint", "+ ms", 0),
    Column("lost_ms", "lost a\ncheckpoint", "ms", 0),
    Column("boundary_ms", "wait at\nboundary", "ms", 2),
    Column("memcpy_ms", "memory\ncopy", "ms"),
    Column("jitter_ms", "longest\nother", "+ ms", 0),
    Column("steps_per_s", "steps/s"),
    Column("bad", "torn, wrong\nname"),
    Column("written_mb_s", "written", "MB/s", 0),
)


def measure(settings: Settings) -> Table:
    table = Table("stall", "What the training thread feels of a checkpoint", COLUMNS)
    table.notes += [
        "longest step at a checkpoint: of the steps that it overlaps, less the median of the other steps (longest other:",
        "the longest of those).  lost a checkpoint: what all steps that it overlaps took above that median.  For procsv",
        "each snapshot counts as a checkpoint.  wait at boundary: of the training thread, between two steps.  torn: values",
        "of several steps in one checkpoint; wrong name: not the step in the file.  written: in the background of training.",
    ]
    for mb, variables in settings.rows:
        for kind in settings.kinds:
            _measure_row(settings, table, kind, mb, variables)
    return table


def _measure_row(settings: Settings, table: Table, kind: Kind, mb: float, variables: int) -> None:
    is_big = mb >= BIG_MB
    found: dict[Arm, list[Result]] = defaultdict(list)
    repeats = settings.repeats_or(usual=1 if is_big or mb <= SMALL_MB else 2)
    for repeat in range(repeats):
        for arm in COMPARED:
            settings.say(f"stall: {kind} {mb:g} MB in {variables:,}, {NAMES[arm]}, {repeat + 1} of {repeats}")
            trial = Trial(
                what="train",
                arm=arm,
                kind=kind,
                mb=mb,
                variables=variables,
                work=WORK,
                seconds=10.0 if is_big else 5.0 if settings.quick else 6.0,
                save_s=4.0 if is_big else 2.0,
                check=True,
                copy=arm == "procsv",
            )
            found[arm].append(run_trial(trial))
    for arm in COMPARED:
        table.rows.append({"variables": f"{kind}, {mb:g} MB in {variables:,}", "arm": NAMES[arm], **row(found[arm])})
        settings.say(in_words(table.rows[-1], COLUMNS))
    table.bars += _bars(kind, mb, variables, found)


def row(results: list[Result]) -> dict[str, Cell]:
    """Summarize the trials of one arm."""
    felt = [feel(result["steps"], result["saves"] + result["snapshots"]) for result in results]
    checked = sum(result["checked"] for result in results)
    return {
        "checkpoints": checked,
        "step_ms": Figure.of(each.step_s * 1e3 for each in felt),
        "stall_ms": Figure.of(stall_s * 1e3 for each in felt for stall_s in each.stalls_s),
        "lost_ms": Figure.of(lost_s * 1e3 for each in felt for lost_s in each.lost_s),
        "boundary_ms": Figure.of(stall_s * 1e3 for result in results for stall_s in result["stalls_s"]),
        "memcpy_ms": Figure.of(result["memcpy_s"] * 1e3 for result in results if "memcpy_s" in result),
        "jitter_ms": Figure.of(each.jitter_s * 1e3 for each in felt if each.jitter_s is not None),
        "steps_per_s": Figure.of(each.steps_per_s for each in felt),
        "torn": sum(result["torn"] for result in results),
        "misnamed": sum(result["misnamed"] for result in results),
        "bad": f"{sum(result['torn'] for result in results)}, {sum(result['misnamed'] for result in results)} of {checked}",
        "written_mb_s": written_mb_s(results),
    }


def _bars(kind: Kind, mb: float, variables: int, found: dict[Arm, list[Result]]) -> list[Bar]:
    ours = found["procsv"]
    stall_ms = Figure.of(stall_s * 1e3 for result in ours for stall_s in result["stalls_s"])
    memcpy_ms = Figure.of(result["memcpy_s"] * 1e3 for result in ours)
    bars = []
    if stall_ms is not None and memcpy_ms is not None:
        if kind == "resource":
            limit_ms, how = RESOURCE_STALL_MS + RESOURCE_STALL_US_PER_VARIABLE * variables / 1e3, ""
        else:
            limit_ms, how = REF_COPIES * memcpy_ms.median, f"{REF_COPIES} memory copies = "
        what = f"stall of a snapshot, {kind}, {mb:g} MB in {variables:,}"
        bars.append(Bar.at_most(what, limit_ms, stall_ms.median, "ms", 2, how))
    return bars
