"""Table `preempt`: how much of a platform's grace is left when everything is saved.

Called by __main__.py. Each profile of `procsv preempt` takes the machine away from a live run of
procsv.examples.digits; the next one resumes it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from procsv.drill.preemption import PROFILES
from procsv.testing.run import start
from scripts.benchmarks.figures import Column, Figure, Table
from scripts.benchmarks.processes import (
    TrialFailed,
    check_nothing_left,
    cleared_unless_ended,
    environment,
    procsv_command,
    scratch,
)
from scripts.benchmarks.settings import Settings

PROGRAM = ("procsv.examples.digits", "--steps", "1000000", "--step-ms", "20")
STEPS_BEFORE = 50  # in each launch, before the notice
ENDED = 75

COLUMNS = (
    Column("profile", "profile"),
    Column("grace_s", "grace", "s", 0),
    Column("saved_s", "on disk after", "s", 2),
    Column("ended_s", "all ended after", "s", 2),
    Column("margin_s", "margin", "s", 2),
    Column("lost", "steps lost"),
    Column("in_time", "saved in time"),
)


def measure(settings: Settings) -> Table:
    table = Table("preempt", "A preemption of a live run (digits, a step every 20 ms)", COLUMNS)
    with scratch() as folder, cleared_unless_ended(folder / "logdir"):
        for profile in PROFILES:
            said = []
            for _ in range(settings.repeats_or(usual=3)):
                settings.say(f"preempt: {profile}")
                said.append(_preempt(folder / "logdir", profile))
            table.rows.append(_row(profile, said))
        check_nothing_left(folder / "logdir")
    table.notes.append("each launch goes on where the one before was preempted; times are from the notice on.")
    return table


def _preempt(logdir: Path, profile: str) -> dict[str, Any]:
    run = start(logdir, PROGRAM, environment())
    try:
        run.wait_event(
            "recovered", len(run.events("stopped")) + 1
        )  # each earlier launch has stopped, and recovered once
        run.wait_step(int(run.events("recovered")[-1]["step"]) + STEPS_BEFORE)
        done = subprocess.run(
            procsv_command("preempt", str(logdir), "--profile", profile, "--json"),
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if run.wait_end() != ENDED or done.returncode not in (0, 1):
            raise TrialFailed(f"preempt {profile}: {done.stderr}\n{run.said()[-2000:]}")
    except AssertionError as vain:
        raise TrialFailed(f"preempt {profile}: {vain}") from vain
    finally:
        run.end()
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def _row(profile: str, said: list[dict[str, Any]]) -> dict[str, Any]:
    def figure(key: str) -> Figure | None:
        return Figure.of(one[key] for one in said if one[key] is not None)

    return {
        "profile": profile,
        "grace_s": PROFILES[profile].grace_s,
        "saved_s": figure("saved_after"),
        "ended_s": figure("ended_after"),
        "margin_s": figure("margin"),
        "lost": max(one["lost_steps"] for one in said),
        "in_time": f"{sum(one['in_time'] for one in said)} of {len(said)}",
    }
