"""Tables `keras`, `keras-rate` and `keras-save`: what procsv costs a fit and a loop, beside Keras'
and TensorFlow's savers.

Called by __main__.py. The arms of the first two tables take turns in one process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripts.benchmarks.figures import Bar, Column, Figure, Table
from scripts.benchmarks.processes import TRIAL_S_MAX, TrialFailed, procsv_command, scratch, started, tail
from scripts.benchmarks.settings import Settings

MB = 200.0
VARIABLES = 34  # captured in a snapshot: weights, slots, metrics, counters
STALL_MS_MAX, VARIABLE_MS_MAX, SHARE_MAX = 2.0, 0.0035, 0.01
BATCH_US_MAX, RATE_MIN = 10.0, 0.98
RATE_S, QUICK_RATE_S = 30.0, 8.0  # of one turn of `keras-rate`
SAVES, FIRST_SAVE_MS_MAX = 6, 50.0  # of a CheckpointManager; the first one makes the object graph

COLUMNS = (
    Column("arm", "saved by"),
    Column("stall_ms", "training waits\nfor one", "ms", 2),
    Column("batch_us", "a small batch,\nnothing due", "µs", 0),
)
RATE_COLUMNS = (
    Column("arm", "fit with"),
    Column("rate", "batches\na second", "", 2),
    Column("share", "of the bare fit\nbeside it", "", 3),
    Column("snapshots", "snapshots\na turn", "", 0),
)
SAVE_COLUMNS = (
    Column("arm", "saved by"),
    Column("first_ms", "the first save", "ms", 1),
    Column("later_ms", "later ones", "ms", 2),
)


def measure(settings: Settings) -> Table:
    table = Table("keras", f"A fit of Keras, {MB:g} MB with Adam", COLUMNS)
    rounds = settings.repeats_or(usual=3, quick=2)
    settings.say("keras: savings")
    stalls = _ask({"what": "stall", "mb": MB, "batch": 32, "batches": 40, "rounds": rounds})
    if missing := [name for name, seconds in stalls.items() if not seconds]:
        raise TrialFailed(f"keras: nothing was saved by {', '.join(missing)}")
    settings.say("keras: a batch with nothing due")
    turns = settings.repeats_or(usual=40, quick=10)
    batches = _ask({"what": "batch", "mb": 0.1, "batch": 2, "batches": 300, "rounds": turns})
    for name in ("bare", *stalls):
        table.rows.append(
            {
                "arm": {"bare": "nothing"}.get(name, name),
                "stall_ms": Figure.of(seconds * 1e3 for seconds in stalls.get(name, ())),
                "batch_us": Figure.of(seconds * 1e6 for seconds in batches.get(name, ())),
            }
        )
    ours_ms = statistics.median(stalls["procsv"]) * 1e3
    limit_ms = STALL_MS_MAX + VARIABLES * VARIABLE_MS_MAX
    table.bars.append(Bar.at_most("training thread, a snapshot of a fit, 200 MB", limit_ms, ours_ms, "ms", 2))
    for name in ("BackupAndRestore", "ModelCheckpoint(.weights.h5)", "CheckpointManager.save"):
        limit_ms = SHARE_MAX * statistics.median(stalls[name]) * 1e3
        table.bars.append(Bar.at_most("the same", limit_ms, ours_ms, "ms", 2, f"1/100 of {name} = "))
    beside = zip(batches["procsv"], batches["bare"], strict=True)  # adjacent turns, in like conditions
    more_us = statistics.median(ours - bare for ours, bare in beside) * 1e6
    table.bars.append(Bar.at_most("a batch with nothing due, against a bare fit", BATCH_US_MAX, more_us, "µs"))
    return table


def measure_rate(settings: Settings) -> Table:
    table = Table("keras-rate", f"Batches a second of a fit of Keras, {MB:g} MB with Adam", RATE_COLUMNS)
    rounds = settings.repeats_or(usual=4, quick=2)
    seconds = QUICK_RATE_S if settings.quick else RATE_S
    settings.say(f"keras-rate: {rounds} turns of {seconds:g} s for each of two arms")
    found = _ask({"what": "rate", "mb": MB, "batch": 32, "seconds": seconds, "rounds": rounds})
    if not all(found["snapshots"]):
        raise TrialFailed("keras-rate: in some turn no snapshot was taken")
    # Adjacent turns: a machine's speed changes over minutes by more than the difference to measure.
    shares = [ours / bare for ours, bare in zip(found["procsv"], found["bare"], strict=True)]
    table.rows += [
        {"arm": "nothing", "rate": Figure.of(found["bare"])},
        {
            "arm": "procsv",
            "rate": Figure.of(found["procsv"]),
            "share": Figure.of(shares),
            "snapshots": Figure.of(found["snapshots"]),
        },
    ]
    table.notes.append(
        f"{rounds} turns of {seconds:g} s for each, now one first and now the other.  Two bare fits differ as well: compare the spread."
    )
    what = f"batches a second with automatic snapshots, {rounds * seconds:g} s"
    table.bars.append(Bar.at_least(what, RATE_MIN, statistics.median(shares), "of a bare fit", 3))
    return table


def measure_saves(settings: Settings) -> Table:
    table = Table("keras-save", f"save() of a tf.train.CheckpointManager, {MB:g} MB with Adam", SAVE_COLUMNS)
    variables = 0
    for arm in ("procsv, --drop-in", "TensorFlow"):
        first_s, later_s = list[float](), list[float]()
        for _ in range(settings.repeats_or(usual=3, quick=1)):
            settings.say(f"keras-save: {arm}")
            variables, (first, *later) = _save(is_launched=arm != "TensorFlow")
            first_s.append(first)
            later_s += later
        first_ms, later_ms = (Figure.of(one * 1e3 for one in seconds) for seconds in (first_s, later_s))
        table.rows.append({"arm": arm, "first_ms": first_ms, "later_ms": later_ms})
        if arm != "TensorFlow":
            limit_ms = STALL_MS_MAX + variables * VARIABLE_MS_MAX
            what = "save() of a CheckpointManager under --drop-in, 200 MB"
            table.bars.append(Bar.at_most(what, limit_ms, statistics.median(later_s) * 1e3, "ms", 2))
            table.bars.append(
                Bar.at_most(f"{what}, the first", FIRST_SAVE_MS_MAX, statistics.median(first_s) * 1e3, "ms")
            )
    return table


def _save(is_launched: bool) -> tuple[int, list[float]]:
    """Return how many variables a program has saved, and the seconds of each save."""
    module = "scripts.benchmarks.keras_saves"
    with scratch() as folder:
        run, notes, log = str(folder / "run"), folder / "notes.json", folder / "output.log"
        args = ["--logdir", run, "--mb", f"{MB}", "--saves", f"{SAVES}", "--notes", str(notes)]
        launch = procsv_command("launch", "--logdir", run, "--standby", "off", "--drop-in", module)
        with started([*(launch if is_launched else [sys.executable, "-m", module]), *args], log) as process:
            _wait(process, log)
        found = json.loads(notes.read_text())
        return found["variables"], found["seconds"]


def _wait(process: subprocess.Popen[bytes], log: Path) -> None:
    try:
        code = process.wait(TRIAL_S_MAX)
    except subprocess.TimeoutExpired:
        raise TrialFailed(f"keras: no end after {TRIAL_S_MAX:.0f} s\n{tail(log)}") from None
    if code:
        raise TrialFailed(f"keras: exit code {code}\n{tail(log)}")


def _ask(asked: dict[str, Any]) -> dict[str, list[float]]:
    """Return what a process of its own has measured."""
    with scratch() as folder:
        log = folder / "output.log"
        text = json.dumps(asked | {"folder": str(folder / "fits")})
        with started([sys.executable, "-m", "scripts.benchmarks.keras_trial", text], log, cwd=folder) as process:
            _wait(process, log)
        found: dict[str, list[float]] = json.loads(log.read_text(errors="replace").rstrip().rpartition("\n")[2])
        return found
