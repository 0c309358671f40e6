"""Kill fits of many kinds at batches that a seed chooses: all must end with the bits and the
History of an undisturbed fit.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from tests.support import keras_kinds
from tests.support.launched import launched, python
from tests.support.programs import ROOT

ALONE_S_MAX = 3600.0
STEPS = range(5, 80)  # batches at which it may be killed; the shortest fit has a few more
STEPS_OF = {"two fits": range(5, 180), "another model next": range(5, 180), "stopped early": range(5, 58)}
KILLS = (1, 4)  # per fit
QUICK = ("--backoff", "0.1s..1s", "--snapshot-secs", "0.05", "--max-failures", "1000", "--repeated-failures", "0")


def train_alone(kinds: Sequence[str]) -> dict[str, str]:
    """Return the result of each kind when it is undisturbed, without procsv."""
    done = python("tests.support.keras_kinds", "alone", *kinds, timeout_s=ALONE_S_MAX, PYTHONPATH=str(ROOT))
    done.check_returncode()
    return dict(line.split(": ") for line in done.stdout.splitlines())


def kill_fit(logdir: Path, kind: str, wanted: str, rng: random.Random, kills: int) -> list[str]:
    """Train a fit of this kind and kill it that often; return what was wrong."""
    steps = sorted(rng.sample(STEPS_OF.get(kind, STEPS), kills))
    faults = [word for step in steps for word in ("--fault", f"kill trainer at step {step}")]
    with launched(logdir, *QUICK, *faults, str(Path(keras_kinds.__file__)), kind) as run:
        code, said = run.wait_end(), run.said()
        ends = [entry["evidence"] for entry in run.events("exited", role="trainer")][:-1]
    where = f"{kind}, killed at {steps}"
    wrong = [] if code == 0 else [f"{where}: exit code {code}: {said[-1500:]}"]
    if code == 0 and f"{kind}: {wanted}" not in said.splitlines():
        wrong.append(f"{where}: it ended with other bits than the fit that was left alone")
    if code == 0 and len(ends) != kills:
        wrong.append(f"{where}: it was restarted {len(ends)} times: {ends}")
    return wrong


def soak_by_fits(directory: Path, kills: int, seed: int) -> list[str]:
    """Train fits of all kinds in turn until there were that many kills; return what was wrong."""
    rng, wanted, done, wrong = random.Random(seed), train_alone(keras_kinds.KINDS), 0, list[str]()
    while done < kills:
        for number, kind in enumerate(keras_kinds.KINDS):
            if done >= kills:
                break
            count = min(rng.randint(*KILLS), kills - done)
            found = kill_fit(directory / f"{done}.{number}", kind, wanted[kind], rng, count)
            done += count
            wrong += found
            print(f"kills {done:4} {kind:20} {found[0] if found else 'the same bits'}", flush=True)
    return wrong
