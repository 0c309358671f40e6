"""Tables `keras-restart` and `keras-restore`: a fit of Keras after SIGKILL.

Called by __main__.py.  `procsv launch` with each kind of standby, beside a shell loop that starts the same program again with
keras.callbacks.BackupAndRestore; each repetition is a run of its own, in turns.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass

from scripts.benchmarks.figures import Bar, Column, Figure, Table
from scripts.benchmarks.runs import running
from scripts.benchmarks.settings import NAMES, Arm, Settings

MB, GIB_MB = 20.0, 1024**3 / 1e6
BATCH = 32
SAVE_BATCHES = 50  # between backups of Keras' callback
TRAIN_S = 5.0  # before each kill, and until a standby waits
KILLS, QUICK_KILLS = 2, 1
SHARES_MAX = {"warm": 0.4, "hot": 0.15}  # of the shell loop
RESTORE_MS_MAX = 60.0

COLUMNS = (
    Column("arm", "restarted by"),
    Column("seconds", "SIGKILL to the end of\nthe first new batch", "s", 2),
    Column("lost_batches", "batches lost", "", 0),
)
RESTORE_COLUMNS = (Column("first_ms", "put back", "ms", 0), Column("again_ms", "again, memory\nwarmed", "ms", 1))


@dataclass(frozen=True, slots=True)
class Fit:
    """What is trained."""

    mb: float
    batch: int = BATCH
    again: bool = False
    module: str = "scripts.benchmarks.keras_program"

    def args(self) -> list[str]:
        shape = ["--mb", f"{self.mb}", "--batch", f"{self.batch}", "--save-batches", f"{SAVE_BATCHES}"]
        return [*shape, *(["--again"] if self.again else [])]


@dataclass(frozen=True, slots=True)
class Way:
    arm: Arm
    standby: str = ""

    @property
    def name(self) -> str:
        return f"procsv, standby {self.standby}" if self.standby else f"shell loop, {NAMES[self.arm]}"

    @property
    def options(self) -> tuple[str, ...]:
        return ("--snapshot-secs", "auto", "--standby", self.standby) if self.standby else ()


WARM, HOT, LOOP = Way("procsv", "warm"), Way("procsv", "hot"), Way("keras")


def measure(settings: Settings) -> Table:
    table = Table("keras-restart", f"SIGKILL of a fit of Keras, {MB:g} MB with Adam", COLUMNS)
    seconds: dict[Way, list[float]] = defaultdict(list)
    lost: dict[Way, list[int]] = defaultdict(list)
    repeats = settings.repeats_or(usual=2)
    for repeat in range(repeats):
        for way in (WARM, HOT, LOOP):
            settings.say(f"keras-restart: {way.name}, {repeat + 1} of {repeats}")
            with running(way.arm, Fit(MB), way.options) as run:
                for _ in range(QUICK_KILLS if settings.quick else KILLS):
                    run.marks.listen(TRAIN_S)
                    if way.standby:
                        run.wait_for_standby()
                    run.marks.listen(0.0)
                    killed = run.kill()
                    seconds[way].append(killed.first.time_s - killed.begun_s)
                    lost[way].append(run.marks.of(killed.pid)[-1].step - killed.first.step + 1)
                if way.standby:
                    run.stop()
    table.rows += [
        {"arm": way.name, "seconds": Figure.of(seconds[way]), "lost_batches": Figure.of(lost[way])}
        for way in (WARM, HOT, LOOP)
    ]
    table.notes.append(
        f"Keras' callback saves every {SAVE_BATCHES} batches, procsv takes automatic snapshots.  Lost by the count of the optimizer: "
        "Keras' callback begins the epoch anew besides, with the weights of its middle."
    )
    theirs = statistics.median(seconds[LOOP])
    for way in (WARM, HOT):
        share = SHARES_MAX[way.standby]
        what = f"SIGKILL to the end of the first new batch of a fit, {way.standby} standby"
        ours = statistics.median(seconds[way])
        table.bars.append(Bar.at_most(what, share * theirs, ours, "s", 2, f"{share} of the shell loop = "))
    return table


def measure_restore(settings: Settings) -> Table:
    table = Table("keras-restore", "1 GiB put back into a built Keras model after SIGKILL", RESTORE_COLUMNS)
    settings.say("keras-restore")
    with running("procsv", Fit(GIB_MB, batch=2, again=True), ("--snapshot-secs", "2", "--standby", "off")) as run:
        notes = []
        for _ in range(settings.repeats_or(usual=2)):
            run.marks.listen(2 * TRAIN_S)
            notes += run.restores(run.kill().first.pid)
        run.stop()
    again_ms = [note["again_s"] * 1e3 for note in notes]
    first_ms = Figure.of(note["seconds"] * 1e3 for note in notes)
    table.rows.append({"first_ms": first_ms, "again_ms": Figure.of(again_ms)})
    if again_ms:
        what = "1 GiB put back into a built Keras model, memory warmed"
        table.bars.append(Bar.at_most(what, RESTORE_MS_MAX, statistics.median(again_ms), "ms"))
    return table
