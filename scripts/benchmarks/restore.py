"""Table `restore`: how long a trainer that replaces a killed one takes to get its state back.

Called by __main__.py. procsv's time includes asking the checkpoint service, and the part of its
check of the slot that is not finished by then. A new process has no memory yet: the time that the
kernel takes to provide it (a page fault for each 4 KiB of a ref variable) is in `restore`, but not
in `again`, the bar's figure, for which the same state is restored once more into the same session.
"""

from __future__ import annotations

from collections import defaultdict

from scripts.benchmarks.figures import Bar, Cell, Column, Figure, Table
from scripts.benchmarks.processes import Result
from scripts.benchmarks.runs import Program, running
from scripts.benchmarks.settings import NAMES, Arm, Kind, Settings

MB = 1024**3 / 1e6
WORK = 2
SAVE_S = 6.0
TRAIN_S = 10.0  # before each kill, so that there is a snapshot and a checkpoint, and none is being written
KILLS = 1
LIMITS_MS: dict[Kind, float] = {"resource": 60.0, "ref": 250.0}

COLUMNS = (
    Column("variables", "variables"),
    Column("arm", "supervisor"),
    Column("source", "from"),
    Column("restore_ms", "restore", "ms", 0),
    Column("asked_ms", "of it asking\nthe service", "ms", 0),
    Column("again_ms", "again, memory\nwarmed", "ms", 0),
)


def measure(settings: Settings) -> Table:
    table = Table("restore", "Restoring 1 GiB after SIGKILL", COLUMNS)
    arms: tuple[Arm, ...] = ("procsv", "supervisor")
    for kind in settings.kinds:
        program = Program(MB, settings.variables, WORK, SAVE_S, kind, again=True)
        for arm in arms:
            settings.say(f"restore: {kind}, {NAMES[arm]}")
            found: dict[str, list[Result]] = defaultdict(list)
            with running(arm, program) as run:
                for _ in range(settings.repeats_or(usual=KILLS)):
                    run.marks.listen(TRAIN_S)
                    for note in run.restores(run.kill().first.pid):
                        found[note["source"]].append(note)
                if arm == "procsv":
                    run.stop()
            for source, notes in found.items():
                restore_ms = Figure.of(note["seconds"] * 1e3 for note in notes)
                row: dict[str, Cell] = {
                    "variables": kind,
                    "arm": NAMES[arm],
                    "source": source,
                    "restore_ms": restore_ms,
                }
                if arm == "procsv":
                    row["asked_ms"] = Figure.of(note["asked_s"] * 1e3 for note in notes)
                warm_ms = Figure.of((note["asked_s"] + note["again_s"]) * 1e3 for note in notes if note["again_s"])
                row["again_ms"] = warm_ms
                table.rows.append(row)
                if warm_ms is not None and restore_ms is not None:
                    for memory, figure in (("in a new process", restore_ms), ("on warmed memory", warm_ms)):
                        what = f"1 GiB restored from memory, {memory}, {kind}"
                        table.bars.append(Bar.at_most(what, LIMITS_MS[kind], figure.median, "ms", 0))
    return table
