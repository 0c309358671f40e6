"""Make mixed trouble: kills, freezes, sweeps, full disks, a lost logdir, a clock set back, copies
of the live logdir.

After each trouble checkpoints must come again. At the end nothing may be lost, wrong or left
behind: no restart went back behind an acknowledged checkpoint, and the variables of the run and of
its copies equal an undisturbed run's.
"""

from __future__ import annotations

import collections
import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from procsv.base.journal.entries import CheckpointDurable, Recovered
from procsv.base.journal.file import read_journal
from scripts.soaking.ground import Ground, prepared_ground
from scripts.soaking.kills import OPTIONS
from scripts.soaking.troubles import Trouble, possible_troubles
from scripts.soaking.watch import Watch, find_remains
from tests.support.launched import Launched, launched, procsv, python
from tests.support.ordinary_rights import ORDINARY_RIGHTS

LASTS_S = 0.5, 8.0
SECOND_SHARE = 0.25  # the share of troubles that come while another one lasts
COPY_EVERY = 20  # troubles
WATCHDOG_EVERY = 25
MORE_STEPS = 200  # trained by a copy
STEP_MS = 4
REFERENCE_S_MAX = 1800.0
TARGET = "procsv.examples.digits"

Digests = dict[int, str]  # a digest of all variables, by step


def soak_by_mixed_trouble(place: Path, minutes: float, every_s: float, seed: int) -> list[str]:
    """Run it in `place`; return what was wrong."""
    before = os.environ.get("XDG_RUNTIME_DIR")
    with prepared_ground(place) as ground:
        os.environ["XDG_RUNTIME_DIR"] = str(ground.runtime)  # this process looks for the run there, too
        try:
            return _Soak(ground, seed).run_troubles(minutes, every_s)
        finally:
            os.environ.pop("XDG_RUNTIME_DIR")
            if before is not None:
                os.environ["XDG_RUNTIME_DIR"] = before


class _Soak:
    """One soak."""

    def __init__(self, ground: Ground, seed: int) -> None:
        self._ground, self._rng = ground, random.Random(seed)
        self._watch, self._digests = Watch(), Digests()
        self._counts: collections.Counter[str] = collections.Counter()
        self._pause = threading.Event()
        self._troubles, left_out = possible_troubles(ground)
        for words in left_out:
            print(f"left out: {words}")

    def run_troubles(self, minutes: float, every_s: float) -> list[str]:
        end_s, logdir = time.monotonic() + minutes * 60, self._ground.logdir
        more: dict[str, Any] = dict(self._ground.environment())
        target = (TARGET, "--steps", "100000000", "--step-ms", str(STEP_MS), "--save-model-secs", "2")
        while time.monotonic() < end_s:
            with launched(logdir, *OPTIONS, *target, within=ORDINARY_RIGHTS, **more) as run:
                self._watch.forget()
                run.wait_event("ready", 1 + len(run.events("ready")))
                self._trouble(run, end_s, every_s)
                if run.process.poll() is None:
                    self._stop(run)
                elif run.process.returncode != -signal.SIGKILL:
                    self._watch.wrong.append(f"ended by itself with {run.process.returncode}: {run.said()[-3000:]}")
                    break
        print(", ".join(f"{count} x {what}" for what, count in sorted(self._counts.items())))
        self._note_digest(logdir, self._newest_step(logdir) + 1)
        return self._watch.wrong + _lost(logdir) + self._wrong_values() + find_remains(logdir)

    def _stop(self, run: Launched) -> None:
        run.wait_event("ready", 1)
        procsv("stop", str(run.logdir))
        code = run.wait_end()
        self._watch.wrong += [f"exit code {code} at the end: {run.said()[-2000:]}"] if code != 75 else []

    def _trouble(self, run: Launched, end_s: float, every_s: float) -> None:
        """Make trouble until the end, or until the watchdog is gone."""
        while time.monotonic() < end_s and run.process.poll() is None:
            self._pause.wait(self._rng.uniform(0.2, 2.0) * every_s)
            number = sum(self._counts.values()) + 1
            if number % WATCHDOG_EVERY == 0:
                self._counts["watchdog killed"] += 1
                run.process.kill()
                run.process.wait()
                print(f"{number:4} watchdog killed", flush=True)
                return
            durable = len(run.events("checkpoint_durable"))
            what = self._make(run, self._rng.choice(self._troubles))
            run.wait_event("checkpoint_durable", durable + 2)  # the first one may already have been in progress
            if number % COPY_EVERY == 0:
                what += self._launch_copy()
            print(f"{number:4} {what:50} step {run.step():8}  {self._watch.check_growth(run)}", flush=True)

    def _make(self, run: Launched, trouble: Trouble) -> str:
        """Make one trouble, or one within another."""
        with trouble(run, self._ground, self._rng) as words:
            self._counts[words] += 1
            self._watch.sockets_lost += words in ("runtime directory swept", "control.sock unlinked")
            self._pause.wait(self._rng.uniform(*LASTS_S))
            if self._rng.random() >= SECOND_SHARE:
                return words
            with self._troubles[0](run, self._ground, self._rng) as more:  # a kill
                self._counts[more] += 1
                return f"{words}, {more}"

    # -- copies ----------------------------------------------------------------------------------------------
    def _launch_copy(self) -> str:
        """Copy the live logdir and train on in the copy; the result is checked with the others."""
        logdir, copy = self._ground.logdir, self._ground.base / f"copy{sum(self._counts.values())}"
        durable = self._newest_step(logdir)
        subprocess.run(
            ["cp", "-a", str(logdir), str(copy)], check=False, stderr=subprocess.DEVNULL
        )  # it is live, so files disappear
        found = self._note_digest(copy, durable + MORE_STEPS)
        if found < durable:
            self._watch.wrong.append(
                f"a copy went on at step {found}, and step {durable} was on disk before it was made"
            )
        shutil.rmtree(copy, ignore_errors=True)
        return f", copy from step {found}"

    def _newest_step(self, logdir: Path) -> int:
        entries = (line.entry for line in read_journal(logdir / "procsv" / "journal.jsonl"))
        return max((entry.step for entry in entries if isinstance(entry, CheckpointDurable)), default=-1)

    def _note_digest(self, logdir: Path, steps: int) -> int:
        """Train on to step `steps` without trouble and note the result; return the step that it
        resumed from.
        """
        with launched(logdir, TARGET, "--steps", str(steps)) as run:
            recovered = run.wait_event("ready", 1 + len(run.events("ready")))[-1]
            code = run.wait_end()
            said = run.said()
        found = re.findall(r"variables ([0-9a-f]{16})", said)
        if code or not found:
            self._watch.wrong.append(f"{logdir.name} ended with {code}: {said[-2000:]}")
            return -1
        self._digests[steps] = found[-1]
        return int(recovered["step"])

    # -- the end ---------------------------------------------------------------------------------------------
    def _wrong_values(self) -> list[str]:
        """Return what differs from an undisturbed run of the same program, trained in the same
        stages.
        """
        wrong, reference = [], self._ground.base / "reference"
        for steps, digest in sorted(self._digests.items()):
            done = python(TARGET, "--logdir", str(reference), "--steps", str(steps), timeout_s=REFERENCE_S_MAX)
            done.check_returncode()
            if f"variables {digest}" not in done.stdout:
                wrong.append(f"wrong values at step {steps}: {digest}, and undisturbed: {done.stdout[-200:]}")
        print(f"{len(self._digests)} states compared with an undisturbed run's: {len(wrong)} differ")
        return wrong


def _lost(logdir: Path) -> list[str]:
    """Return the restarts that went back behind an acknowledged checkpoint."""
    wrong, durable, restarts = [], -1, 0
    for line in read_journal(logdir / "procsv" / "journal.jsonl"):
        match line.entry:
            case CheckpointDurable(step=step):
                durable = max(durable, step)
            case Recovered(step=step):
                restarts += 1
                if step < durable:
                    wrong.append(f"lost: went on at step {step}, and step {durable} was acknowledged")
    print(f"{restarts} restarts, {len(wrong)} of them behind an acknowledged checkpoint")
    return wrong
