"""Define the troubles of a run: each begins, lasts some seconds, and ends, and does what happens to
real machines.

A trouble never asks procsv to do anything; it takes processes, files, disks and the clock away from
it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil

from procsv.base.run.paths import find_paths
from scripts.soaking.ground import Ground, fake_clock
from tests.support.launched import Launched

ROLES = ("trainer or standby", "trainer or standby", "checkpoint", "summary")
WORDS = {
    "trainer or standby": "procsv.training",
    "checkpoint": "procsv.services.checkpoint",
    "summary": "procsv.services.summary",
}
PIECE = b"\0" * 2**16  # bytes
HOUR = "-3600"

Trouble = Callable[
    [Launched, Ground, random.Random], AbstractContextManager[str]
]  # yields a description of what it does


def _signal(run: Launched, role: str, number: int) -> int | None:
    """Send a signal to the process of that role, found through the system, because the journal may
    be away; return its pid.
    """
    with contextlib.suppress(psutil.Error):
        watchdog = psutil.Process(run.process.pid)
        for process in [watchdog] if role == "watchdog" else watchdog.children():
            if role == "watchdog" or WORDS[role] in " ".join(process.cmdline()):
                process.send_signal(number)
                return process.pid
    return None


@contextlib.contextmanager
def kill_one(run: Launched, ground: Ground, rng: random.Random) -> Iterator[str]:
    role = rng.choice(ROLES)
    _signal(run, role, signal.SIGKILL)
    yield f"{role} killed"


@contextlib.contextmanager
def freeze_one(run: Launched, ground: Ground, rng: random.Random) -> Iterator[str]:
    role = rng.choice((*ROLES, "watchdog"))
    pid = _signal(run, role, signal.SIGSTOP)
    try:
        yield f"{role} frozen"
    finally:
        with contextlib.suppress(ProcessLookupError):  # it was replaced
            if pid is not None:
                os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def sweep_shared_memory(run: Launched, ground: Ground, rng: random.Random) -> Iterator[str]:
    shutil.rmtree(find_paths(run.logdir).shm_dir, ignore_errors=True)
    yield "shared memory swept"


@contextlib.contextmanager
def sweep_runtime(run: Launched, ground: Ground, rng: random.Random) -> Iterator[str]:
    shutil.rmtree(find_paths(run.logdir).run_dir, ignore_errors=True)
    yield "runtime directory swept"


@contextlib.contextmanager
def unlink_one(run: Launched, ground: Ground, rng: random.Random) -> Iterator[str]:
    directory = find_paths(run.logdir).run_dir
    found = sorted(path for pattern in ("*.sock", "*.lock") for path in directory.glob(pattern))
    chosen = rng.choice(found) if found else directory / "nothing"
    chosen.unlink(missing_ok=True)
    yield f"{chosen.name} unlinked"


@contextlib.contextmanager
def take_logdir_away(run: Launched, ground: Ground, rng: random.Random) -> Iterator[str]:
    away = ground.disk / "away"
    ground.logdir.rename(away)
    try:
        yield "logdir away"
    finally:
        if ground.logdir.exists():  # if something recreated it meanwhile, the real one is lost
            raise AssertionError(f"something has made {ground.logdir} anew: {sorted(ground.logdir.rglob('*'))[:20]}")
        away.rename(ground.logdir)


@contextlib.contextmanager
def make_logdir_read_only(run: Launched, ground: Ground, rng: random.Random) -> Iterator[str]:
    _set_modes(ground.logdir, 0o555)
    try:
        yield "logdir read-only"
    finally:
        _set_modes(ground.logdir, 0o755)


def _set_modes(logdir: Path, mode: int) -> None:
    for directory, _, _ in list(os.walk(logdir)):
        with contextlib.suppress(FileNotFoundError):  # a save that is just ending removed it
            Path(directory).chmod(mode)


@contextlib.contextmanager
def fill_disk(run: Launched, ground: Ground, rng: random.Random) -> Iterator[str]:
    with _full(ground.disk):
        yield "disk full"


@contextlib.contextmanager
def fill_runtime(run: Launched, ground: Ground, rng: random.Random) -> Iterator[str]:
    with _full(ground.runtime):
        yield "runtime directory full"


@contextlib.contextmanager
def _full(directory: Path) -> Iterator[None]:
    filler = directory / "filler"
    try:
        with filler.open("wb", buffering=0) as stream:
            size = len(PIECE)
            while size:
                try:
                    stream.write(PIECE[:size])
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2
        yield
    finally:
        filler.unlink(missing_ok=True)


@contextlib.contextmanager
def set_clock_back(run: Launched, ground: Ground, rng: random.Random) -> Iterator[str]:
    ground.set_clock(HOUR)
    try:
        yield "clock an hour back"
    finally:
        ground.set_clock("+0")


def possible_troubles(ground: Ground) -> tuple[list[Trouble], list[str]]:
    """Return the troubles that can be made here, mostly kills; and what cannot, in words."""
    found: list[Trouble] = [kill_one, kill_one, kill_one, kill_one, freeze_one, freeze_one]
    found += [sweep_shared_memory, sweep_runtime, unlink_one]
    found += [take_logdir_away, make_logdir_read_only]
    left_out: list[str] = []
    if ground.can_fill:
        found += [fill_disk, fill_runtime]
    else:
        left_out.append("full disks: no right to mount")
    if fake_clock():
        found.append(set_clock_back)
    else:
        left_out.append("the clock: no libfaketime")
    return found, left_out
