"""Kill a process, chosen by a seed, with SIGKILL every few seconds; the watchdog rarely."""

from __future__ import annotations

import math
import random
import signal
import threading
import time
from pathlib import Path

from scripts.soaking.watch import Watch, find_remains
from tests.support.launched import launched, procsv

ROLES = ("trainer", "trainer", "checkpoint", "summary")
WATCHDOG_EVERY = 25  # kills
# On a slow machine the kills may come before the first step again and again, which must not make the run give up.
OPTIONS = (
    *("--backoff", "0.2s..1s", "--max-failures", "1000000", "--service-failures", "1000000"),
    *("--repeated-failures", "0", "--min-goodput", "0"),
)


def soak_by_kills(logdir: Path, minutes: float, every_s: float, seed: int) -> list[str]:
    """Run it; return what was wrong."""
    rng, watch, pause = random.Random(seed), Watch(), threading.Event()
    end_s, kills = math.inf, 0
    target = ("procsv.examples.digits", "--steps", "100000000", "--step-ms", "2", "--save-model-secs", "5")
    while time.monotonic() < end_s:
        with launched(logdir, *OPTIONS, *target) as run:
            watch.forget()
            run.wait_event("ready", 1 + len(run.events("ready")))  # by then it has opened all its descriptors
            end_s = min(end_s, time.monotonic() + minutes * 60)  # from the first step: a machine may be slow
            while time.monotonic() < end_s and run.process.poll() is None:
                pause.wait(rng.uniform(0.2, 2.0) * every_s)
                kills += 1
                role = "watchdog" if kills % WATCHDOG_EVERY == 0 else rng.choice(ROLES)
                run.kill(role, signal.SIGKILL)
                print(f"kill {kills:4} {role:10} step {run.status()['step']:8}  {watch.check_growth(run)}", flush=True)
            if run.process.poll() is None:
                run.wait_event("ready")
                procsv("stop", str(logdir))
                code = run.wait_end()
                watch.wrong += [f"exit code {code} at the end: {run.said()[-500:]}"] if code != 75 else []
            elif run.process.returncode != -signal.SIGKILL:
                watch.wrong.append(f"ended by itself with {run.process.returncode}: {run.said()[-2000:]}")
                break
    return watch.wrong + find_remains(logdir)
