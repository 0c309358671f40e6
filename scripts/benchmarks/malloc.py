"""Table `malloc`: steps per second and peak size of a trainer that keeps the memory of a step, and
of one that does not.

Called by __main__.py. Four models take turns, each in a `procsv launch` run of its own.
"""

from __future__ import annotations

import json
from collections import defaultdict

from scripts.benchmarks.figures import Column, Figure, Table
from scripts.benchmarks.processes import TrialFailed, procsv_command, scratch, started, tail
from scripts.benchmarks.settings import Settings

MODELS = ("dense", "convolution", "embedding", "keras")
WAYS = ("system", "keep")
SECONDS, QUICK_SECONDS = 12.0, 3.0
END_S_MAX = 300.0
MB = 1e6

COLUMNS = (
    Column("model", "model"),
    Column("system", "steps/s,\n--malloc system", "", 2),
    Column("keep", "--malloc keep", "", 2),
    Column("faster", "ratio", "", 3),
    Column("system_rss", "largest size,\nsystem", "MB", 0),
    Column("keep_rss", "keep", "MB", 0),
    Column("larger", "ratio", "", 3),
)


def measure(settings: Settings) -> Table:
    table = Table("malloc", "A trainer whose malloc keeps the memory of a step", COLUMNS)
    repeats = settings.repeats_or(usual=3)
    for model in MODELS:
        found: dict[str, list[float]] = defaultdict(list)
        for repeat in range(repeats):
            for way in WAYS:
                settings.say(f"malloc: {model}, {way}, {repeat + 1} of {repeats}")
                rate, rss = _train(model, way, QUICK_SECONDS if settings.quick else SECONDS)
                found[way].append(rate)
                found[f"{way}_rss"].append(rss / MB)
        ratios = {
            "faster": [keep / system for keep, system in zip(found["keep"], found["system"], strict=True)],
            "larger": [keep / system for keep, system in zip(found["keep_rss"], found["system_rss"], strict=True)],
        }
        table.rows.append({"model": model, **{name: Figure.of(figures) for name, figures in (found | ratios).items()}})
    return table


def _train(model: str, way: str, seconds: float) -> tuple[float, float]:
    with scratch() as folder:
        out, log = folder / "out.json", folder / "output.log"
        options = ("--logdir", str(folder / "logdir"), "--malloc", way, "--standby", "off")
        program = ("scripts.benchmarks.malloc_program", model, f"{seconds}", str(out))
        with started(procsv_command("launch", *options, *program), log, cwd=folder) as process:
            if process.wait(END_S_MAX) != 0 or not out.exists():
                raise TrialFailed(f"malloc, {model}: {tail(log)}")
        result = json.loads(out.read_text())
        return result["rate"], result["rss"]
