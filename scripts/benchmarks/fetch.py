"""Table `fetch`: fetch a snapshot from another machine's memory, compared with reading its
checkpoint from disk.

Called by __main__.py. Both ends are on this machine, in processes of their own, and communicate by
TCP as on several machines.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from procsv.base.system.system_clock import SystemClock
from procsv.ipc.bulk.fetch import Fetch
from procsv.ipc.messaging.checkpoint_messages import StateOffer
from scripts.benchmarks.figures import Column, Figure, Table
from scripts.benchmarks.processes import ROOT, TrialFailed, scratch, started, tail
from scripts.benchmarks.settings import Settings

CLOCK, PAUSE = SystemClock(), threading.Event()
MB = 200.0
NEWS_S_MAX, LOOK_S = 300.0, 0.02
SHM = Path("/dev/shm")

COLUMNS = (
    Column("what", "the newest state"),
    Column("seconds", "until a task of another machine has it", "s", 2),
    Column("mb_s", "", "MB/s", 0),
)


def measure(settings: Settings) -> Table:
    mb, repeats = (settings.sizes_mb or (MB,))[0], settings.repeats_or(usual=5, quick=2)
    table = Table("fetch", f"What the chief has in memory, {mb:g} MB, on another machine", COLUMNS)
    settings.say(f"fetch: {repeats} times from memory")
    with _other_end(mb, "offer", repeats) as news:
        fetched = [_fetch(msgspec.json.decode(line, type=StateOffer)) for line in news]
    settings.say(f"fetch: {repeats} times from the disk")
    with _other_end(mb, "read", repeats) as news:
        written, read = zip(*([float(word) for word in line.split()] for line in news), strict=True)
    for what, seconds in (
        ("fetched from memory, checked to the last bit", fetched),
        ("read from its checkpoint, which is not in the page cache", list(read)),
        ("the checkpoint is written to the disk before", list(written)),
    ):
        speed = Figure.of(mb / each for each in seconds)
        table.rows.append({"what": what, "seconds": Figure.of(seconds), "mb_s": speed})
    return table


def _fetch(offer: StateOffer) -> float:
    over = threading.Event()
    with scratch_memory() as shm:
        fetch = Fetch("127.0.0.1", offer, shm, CLOCK, over.set)
        fetch.wait_over()
        if fetch.error:
            raise TrialFailed(f"fetch: {fetch.error}")
        fetch.give_up()
    return fetch.seconds


@contextlib.contextmanager
def scratch_memory() -> Iterator[Path]:
    path = SHM / f"procsv-bench-{CLOCK.wall():.6f}"
    path.mkdir(0o700)
    try:
        yield path
    finally:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()


@contextlib.contextmanager
def _other_end(mb: float, what: str, count: int) -> Iterator[Iterator[str]]:
    """Yield the lines of `fetch_program.py`, one for each time; the program ends with the block."""
    with scratch() as folder, scratch_memory() as shm:
        log = folder / "log"
        argv = [
            sys.executable,
            "-m",
            "scripts.benchmarks.fetch_program",
            what,
            str(mb),
            str(count),
            str(folder),
            str(shm),
        ]
        with started(argv, log, cwd=ROOT):
            yield _lines(log, count)


def _lines(log: Path, count: int) -> Iterator[str]:
    deadline_s = CLOCK.monotonic() + NEWS_S_MAX
    for number in range(count):
        while len(found := [line for line in log.read_text().split("\n")[:-1] if line.startswith("= ")]) <= number:
            if CLOCK.monotonic() > deadline_s:
                raise TrialFailed(f"fetch: no news\n{tail(log)}")
            PAUSE.wait(LOOK_S)
        yield found[number].removeprefix("= ")
