"""Table `save`: how fast checkpoints are written while the trainer has little else to do.

Called by __main__.py.
"""

from __future__ import annotations

from scripts.benchmarks.figures import Bar, Column, Figure, Table
from scripts.benchmarks.processes import Result, run_trial
from scripts.benchmarks.settings import NAMES, Arm, Settings, Trial

MB = 400.0
SECONDS, SAVE_S, PAUSE_S = 16.0, 4.0, 0.5
SHARE_MIN = 0.9

COLUMNS = (
    Column("arm", "supervisor"),
    Column("checkpoints", "checkpoints"),
    Column("written_mb_s", "written", "MB/s", 0),
    Column("synced_mb_s", "on the disk", "MB/s", 0),
)


def measure(settings: Settings) -> Table:
    table = Table("save", f"Writing checkpoints of {MB:g} MB, one step every {PAUSE_S:g} s", COLUMNS)
    arms: tuple[Arm, ...] = ("procsv", "supervisor")
    found: dict[Arm, list[Result]] = {arm: [] for arm in arms}
    repeats = settings.repeats_or(usual=1)
    for repeat in range(repeats):
        for arm in arms:
            settings.say(f"save: {NAMES[arm]}, {repeat + 1} of {repeats}")
            trial = Trial(
                "train",
                arm,
                mb=MB,
                variables=settings.variables,
                seconds=SECONDS,
                save_s=SAVE_S,
                pause_s=PAUSE_S,
                sync=True,
            )
            found[arm].append(run_trial(trial))
    for arm in arms:
        count = sum(len(result["written"]) for result in found[arm])
        written = written_mb_s(found[arm])
        synced = written if arm == "procsv" else speed(found[arm], "synced")  # ours is not done until it is on disk
        table.rows.append({"arm": NAMES[arm], "checkpoints": count, "written_mb_s": written, "synced_mb_s": synced})
    table.notes.append(
        "procsv: until the checkpoint is read back, on the disk (fsync) and named; Saver.save: until it is in the page cache, "
        "and until an fsync of its files that follows."
    )
    ours, theirs = written_mb_s(found["procsv"]), written_mb_s(found["supervisor"])
    if ours is not None and theirs is not None:
        how = f"{SHARE_MIN} of Saver.save = "
        table.bars.append(Bar.at_least("writing a checkpoint", SHARE_MIN * theirs.median, ours.median, "MB/s", 0, how))
    return table


def written_mb_s(results: list[Result]) -> Figure | None:
    return speed(results, "written")


def speed(results: list[Result], what: str) -> Figure | None:
    """Return MB/s from the field `what` of `Recording`."""
    return Figure.of(size / 1e6 / seconds for result in results for size, seconds in result[what] if seconds > 0)
