"""Table `keras`: what a BackupAndRestore of procsv costs a fit, beside Keras' and TensorFlow's own ways of saving.

Called by __main__.py.  The arms take turns in one process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Any

from scripts.benchmarks.figures import Bar, Column, Figure, Table
from scripts.benchmarks.processes import TRIAL_S_MAX, TrialFailed, scratch, started, tail
from scripts.benchmarks.settings import Settings

MB = 200.0
VARIABLES = 34  # read in a snapshot: weights, slots, metrics, counters
STALL_MS_MAX, VARIABLE_MS_MAX, SHARE_MAX = 2.0, 0.0035, 0.01
BATCH_US_MAX, RATE_MIN = 10.0, 0.98

COLUMNS = (
    Column("arm", "saved by"),
    Column("stall_ms", "training waits\nfor one", "ms", 2),
    Column("batch_us", "a small batch,\nnothing due", "µs", 0),
    Column("rate", "batches\na second", "", 2),
)


def measure(settings: Settings) -> Table:
    table = Table("keras", f"A fit of Keras, {MB:g} MB with Adam", COLUMNS)
    rounds = settings.repeats_or(usual=3, quick=2)
    settings.say("keras: savings")
    stalls = _ask({"what": "stall", "mb": MB, "batch": 32, "batches": 40, "rounds": rounds})
    if missing := [name for name, seconds in stalls.items() if not seconds]:
        raise TrialFailed(f"keras: nothing was saved by {', '.join(missing)}")
    settings.say("keras: a batch with nothing due")
    batches = _ask({"what": "batch", "mb": 0.1, "batch": 2, "batches": 1500, "rounds": 2 * rounds + 1})
    settings.say("keras: batches a second")
    rates = _ask({"what": "rate", "mb": MB, "batch": 32, "seconds": 15.0 if settings.quick else 60.0, "rounds": rounds})
    for name in ("bare", *stalls):
        table.rows.append(
            {
                "arm": {"bare": "nothing"}.get(name, name),
                "stall_ms": Figure.of(seconds * 1e3 for seconds in stalls.get(name, ())),
                "batch_us": Figure.of(seconds * 1e6 for seconds in batches.get(name, ())),
                "rate": Figure.of(rates.get(name, ())),
            }
        )
    ours_ms = statistics.median(stalls["procsv"]) * 1e3
    limit_ms = STALL_MS_MAX + VARIABLES * VARIABLE_MS_MAX
    table.bars.append(Bar.at_most("training thread, a snapshot of a fit, 200 MB", limit_ms, ours_ms, "ms", 2))
    for name in ("BackupAndRestore", "ModelCheckpoint(.weights.h5)", "CheckpointManager.save"):
        limit_ms = SHARE_MAX * statistics.median(stalls[name]) * 1e3
        table.bars.append(Bar.at_most("the same", limit_ms, ours_ms, "ms", 2, f"1/100 of {name} = "))
    more_us = (statistics.median(batches["procsv"]) - statistics.median(batches["bare"])) * 1e6
    table.bars.append(Bar.at_most("a batch with nothing due, against a bare fit", BATCH_US_MAX, more_us, "µs"))
    share = statistics.median(rates["procsv"]) / statistics.median(rates["bare"])
    table.bars.append(Bar.at_least("batches a second with automatic snapshots", RATE_MIN, share, "of a bare fit"))
    return table


def _ask(asked: dict[str, Any]) -> dict[str, list[float]]:
    """What a process of its own has measured."""
    with scratch() as folder:
        log = folder / "output.log"
        text = json.dumps(asked | {"folder": str(folder / "fits")})
        with started([sys.executable, "-m", "scripts.benchmarks.keras_trial", text], log, cwd=folder) as process:
            try:
                code = process.wait(TRIAL_S_MAX)
            except subprocess.TimeoutExpired:
                raise TrialFailed(f"keras: no end after {TRIAL_S_MAX:.0f} s\n{tail(log)}") from None
        if code:
            raise TrialFailed(f"keras: exit code {code}\n{tail(log)}")
        found: dict[str, list[float]] = json.loads(log.read_text(errors="replace").rstrip().rpartition("\n")[2])
        return found
