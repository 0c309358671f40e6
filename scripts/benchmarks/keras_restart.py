"""Tables `keras-restart` and `keras-restore`: a Keras fit after SIGKILL.

Called by __main__.py. `procsv launch` with each kind of standby is compared with a shell loop that
restarts the same program with keras.callbacks.BackupAndRestore. Each repetition is a run of its
own, in turns. The cost is also given in batches: the ones lost to SIGKILL, and to SIGTERM.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections import defaultdict
from dataclasses import dataclass, field

from scripts.benchmarks.figures import Bar, Column, Figure, Table
from scripts.benchmarks.runs import Run, running
from scripts.benchmarks.settings import NAMES, Arm, Settings

MB, GIB_MB = 20.0, 1024**3 / 1e6
BATCH = 32
SAVE_BATCHES = 50  # between backups of Keras' callback
TRAIN_S = 5.0  # before each kill, and until a standby is ready
KILLS, QUICK_KILLS = 2, 1
BOUNDARY_BATCHES = 2  # a due snapshot waits for the end of a batch, and is complete one batch later
ITERATIONS = "optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE"  # in a checkpoint: how many batches its state has seen
SHARES_MAX = {"warm": 0.4, "hot": 0.15}  # relative to the shell loop
RESTORE_MS_MAX = 60.0

COLUMNS = (
    Column("arm", "restarted by"),
    Column("seconds", "SIGKILL to the end of\nthe first new batch", "s", 2),
    Column("lost_batches", "batches lost", "", 0),
    Column("interval_batches", "snapshots every", "batches", 0),
    Column("stop_lost_batches", "lost to SIGTERM", "batches", 0),
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


@dataclass(slots=True)
class Found:
    """All kills and stops of one arm."""

    seconds: list[float] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    intervals: list[float] = field(default_factory=list)  # between snapshots at each kill, in batches
    stop_lost: list[int] = field(default_factory=list)


def measure(settings: Settings) -> Table:
    table = Table("keras-restart", f"SIGKILL of a fit of Keras, {MB:g} MB with Adam", COLUMNS)
    found: dict[Way, Found] = defaultdict(Found)
    repeats = settings.repeats_or(usual=2)
    for repeat in range(repeats):
        for way in (WARM, HOT, LOOP):
            settings.say(f"keras-restart: {way.name}, {repeat + 1} of {repeats}")
            with running(way.arm, Fit(MB), way.options) as run:
                for _ in range(QUICK_KILLS if settings.quick else KILLS):
                    _kill(run, way, found[way])
                if way.standby:
                    _stop(run, found[way])
    table.rows += [
        {
            "arm": way.name,
            "seconds": Figure.of(found[way].seconds),
            "lost_batches": Figure.of(found[way].lost),
            "interval_batches": Figure.of(found[way].intervals),
            "stop_lost_batches": Figure.of(found[way].stop_lost),
        }
        for way in (WARM, HOT, LOOP)
    ]
    table.notes.append(
        f"Keras' callback saves every {SAVE_BATCHES} batches, procsv takes automatic snapshots.  Lost by the count of the optimizer: "
        "Keras' callback begins the epoch anew besides, with the weights of its middle."
    )
    theirs = statistics.median(found[LOOP].seconds)
    for way in (WARM, HOT):
        share = SHARES_MAX[way.standby]
        what = f"SIGKILL to the end of the first new batch of a fit, {way.standby} standby"
        ours = statistics.median(found[way].seconds)
        table.bars.append(Bar.at_most(what, share * theirs, ours, "s", 2, f"{share} of the shell loop = "))
    table.bars += loss_bars([found[way] for way in (WARM, HOT)])
    return table


def _kill(run: Run, way: Way, found: Found) -> None:
    run.marks.listen(TRAIN_S)
    if way.standby:
        run.wait_for_standby()
    interval_s = run.status()["snapshots"]["interval"] if way.standby else 0.0
    run.marks.listen(0.0)
    killed = run.kill()
    found.seconds.append(killed.first.time_s - killed.begun_s)
    before = run.marks.of(killed.pid)
    found.lost.append(before[-1].step - killed.first.step + 1)
    if way.standby:
        batch_s = statistics.median(after.time_s - one.time_s for one, after in itertools.pairwise(before))
        found.intervals.append(interval_s / batch_s)


def _stop(run: Run, found: Found) -> None:
    """Send SIGTERM to the watchdog; count the ended batches that are not in the newest checkpoint,
    as TensorFlow reads it.
    """
    import tensorflow as tf

    run.marks.listen(TRAIN_S / 2)
    code = run.stop()
    run.marks.listen(0.0)
    if code != os.EX_TEMPFAIL:
        raise run.failed(f"exit code {code} after SIGTERM, not {os.EX_TEMPFAIL}")
    path = tf.train.latest_checkpoint(str(run.logdir))
    if path is None:
        raise run.failed("no checkpoint after SIGTERM")
    found.stop_lost.append(run.marks.last.step - int(tf.train.load_checkpoint(path).get_tensor(ITERATIONS)))


def loss_bars(found: list[Found]) -> list[Bar]:
    """Return the lost batches against the snapshot interval, for the kill that lost most relative
    to it; and for SIGTERM.
    """
    kills = [kill for one in found for kill in zip(one.lost, one.intervals, strict=True)]
    lost, interval = max(kills, key=lambda kill: kill[0] - kill[1])
    what = f"batches lost to SIGKILL, worst of {len(kills)}"
    how = f"{interval:.0f}, the snapshot interval, + {BOUNDARY_BATCHES} = "
    stops = [batches for one in found for batches in one.stop_lost]
    return [
        Bar.at_most(what, interval + BOUNDARY_BATCHES, lost, "batches", 0, how),
        Bar.at_most(f"batches lost to SIGTERM with grace, worst of {len(stops)}", 0, max(stops), "batches", 0),
    ]


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
