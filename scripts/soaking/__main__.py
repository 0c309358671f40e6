"""A run of digits under random kills, for as long as one likes; then: did anything grow, was anything lost?

    scripts/soak [--minutes 30] [--every 6] [--seed 1]

Every few seconds one process, chosen by the seed, is killed with SIGKILL: trainer, checkpoint service, summary service,
or (seldom) the watchdog, after which the same command is given again.  Looked at throughout: memory and descriptors of the
watchdog, memory of the services, slots in shared memory, sockets and other files of the run, files in the logdir.  At the
end the run is stopped; it must exit 75, leave no process, socket or shared memory, and have every acknowledged checkpoint that retention keeps.  Exit code 1 if something was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from procsv.base.run.paths import find_paths
from tests.support.launched import Launched, launched, procsv

ROLES = ("trainer", "trainer", "checkpoint", "summary")
WATCHDOG_EVERY = 25  # kills
WATCHDOG_BYTES_MAX = 48 * 2**20
DESCRIPTORS_GROWTH_MAX = 8
SHM_FILES_MAX = 12
RUN_FILES_MAX = 24  # sockets, locks, heartbeats
SERVICE_BYTES_MAX = 256 * 2**20
LOG_FILES_MAX = 3 * 20 + 3


class Watch:
    """What must not grow."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self._descriptors: int | None = None

    def check_growth(self, run: Launched) -> str:
        """Notes what is wrong; a line that says how it stands."""
        with contextlib.suppress(psutil.Error):
            watchdog = psutil.Process(run.process.pid)
            rss, descriptors = watchdog.memory_info().rss, watchdog.num_fds()
            paths = find_paths(run.logdir)
            shm = len(list(paths.shm_dir.glob("*")))
            logs, run_files = len(list(paths.logs.glob("*"))), sorted(p.name for p in paths.run_dir.glob("*"))
            self._descriptors = descriptors if self._descriptors is None else min(self._descriptors, descriptors)
            self._check(rss <= WATCHDOG_BYTES_MAX, f"the watchdog has {rss / 2**20:.0f} MiB")
            self._check(descriptors <= self._descriptors + DESCRIPTORS_GROWTH_MAX, f"{descriptors} descriptors")
            self._check(shm <= SHM_FILES_MAX, f"{shm} files in shared memory")
            self._check(len(run_files) <= RUN_FILES_MAX, f"files in the run directory: {' '.join(run_files)}")
            self._check(logs <= LOG_FILES_MAX, f"{logs} logs")
            for child in watchdog.children():
                if "procsv.services" in " ".join(child.cmdline()):
                    size = child.memory_info().rss
                    self._check(size <= SERVICE_BYTES_MAX, f"a service has {size / 2**20:.0f} MiB")
            files = f"{shm} files in shared memory, {len(run_files)} in the run directory, {logs} logs"
            return f"watchdog {rss / 2**20:.1f} MiB, {descriptors} fds; {files}"
        return "the watchdog is starting"

    def _check(self, is_well: bool, what: str) -> None:
        if not is_well and what not in self.wrong:
            self.wrong.append(what)

    def forget(self) -> None:
        """Another watchdog."""
        self._descriptors = None


def soak(logdir: Path, minutes: float, every_s: float, seed: int) -> list[str]:
    """Runs it; what was wrong."""
    rng, watch, pause = random.Random(seed), Watch(), threading.Event()
    end_s, kills = time.monotonic() + minutes * 60, 0
    target = ("procsv.examples.digits", "--steps", "100000000", "--step-ms", "2", "--save-model-secs", "5")
    # A slow machine is killed again and again before its first step: that is no reason to give up here.
    options = ("--backoff", "0.2s..1s", "--max-failures", "1000000", "--service-failures", "1000000")
    while time.monotonic() < end_s:
        with launched(logdir, *options, *target) as run:
            watch.forget()
            run.wait_event("ready", 1 + len(run.events("ready")))  # with all of its descriptors
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
    return watch.wrong + _after(logdir)


def _after(logdir: Path) -> list[str]:
    """What is left, and what is not there any more."""
    paths, wrong = find_paths(logdir), []
    deadline_s, pause = time.monotonic() + 40, threading.Event()
    while (paths.shm_dir.exists() or paths.run_dir.exists()) and time.monotonic() < deadline_s:
        pause.wait(0.1)  # after a kill of the watchdog the checkpoint service is the last one out
    wrong += [f"left: {path}" for path in (paths.shm_dir, paths.run_dir) if path.exists()]
    listing = procsv("checkpoints", str(logdir), "--verify")
    if listing.returncode:
        wrong.append(listing.stdout + listing.stderr)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30, help="how long (default %(default)s)")
    parser.add_argument(
        "--every", type=float, default=6, help="seconds between kills, on average (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of kills and their times (default %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="procsv-soak-") as directory:
        wrong = soak(Path(directory) / "digits", args.minutes, args.every, args.seed)
    print("\n".join(wrong) or "nothing grew, nothing was lost, nothing is left")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
