"""Table `launch`: the time from the command to the program's first line, with `procsv launch` and
with plain Python, in turns.

Called by __main__.py. The program imports nothing and records when it begins.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

from scripts.benchmarks.figures import Bar, Column, Figure, Table
from scripts.benchmarks.processes import TrialFailed, procsv_command, scratch, started, tail
from scripts.benchmarks.settings import Settings

REPEATS, QUICK_REPEATS = 15, 3
MORE_S_MAX = 0.3
END_S_MAX = 60.0
PROGRAM = "import time, sys; open(sys.argv[1], 'w').write(str(time.monotonic()))\n"

COLUMNS = (Column("arm", "command"), Column("first_line", "to the program's\nfirst line", "s", 3))


def measure(settings: Settings) -> Table:
    table = Table("launch", "From the command to the program's first line", COLUMNS)
    found: dict[str, list[float]] = defaultdict(list)
    for repeat in range(settings.repeats or (QUICK_REPEATS if settings.quick else REPEATS)):
        settings.say(f"launch: {repeat + 1}")
        with scratch() as folder:
            program = folder / "train.py"
            program.write_text(PROGRAM)
            found["python TARGET"].append(_first_line([sys.executable, str(program)], folder))
            launch = procsv_command("launch", "--logdir", str(folder / "logdir"), str(program))
            found["procsv launch TARGET"].append(_first_line(launch, folder))
    table.rows += [{"arm": arm, "first_line": Figure.of(seconds)} for arm, seconds in found.items()]
    pairs = zip(found["procsv launch TARGET"], found["python TARGET"], strict=True)
    more_s = statistics.median(ours - theirs for ours, theirs in pairs)
    table.bars.append(Bar.at_most("launch, to the program's first line", MORE_S_MAX, more_s, "s more than python", 3))
    return table


def _first_line(command: list[str], folder: Path) -> float:
    """Return the seconds from now."""
    said, log = folder / "said", folder / "output.log"
    said.unlink(missing_ok=True)
    begun_s = time.monotonic()
    with started([*command, str(said)], log, cwd=folder) as process:
        if process.wait(END_S_MAX) != 0:
            raise TrialFailed(f"launch: {tail(log)}")
    return float(said.read_text()) - begun_s
