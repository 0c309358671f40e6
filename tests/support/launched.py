"""A run of `procsv launch` under test: real processes, watched through the files that a user has.

Every wait is for news in the journal (or status) and has a deadline; a run that is still up at the end of its block
is killed, processes and all.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from procsv.ipc.journal import read_journal

NEWS_S_MAX = 90.0  # how long any single piece of news may take on a busy machine
LOOK_S = 0.02

Entry = dict[str, Any]


class Launched:
    """One `procsv launch`."""

    def __init__(self, logdir: Path, process: subprocess.Popen[str], output: Path) -> None:
        self.logdir, self.process, self.output = logdir, process, output

    # -- what a user sees ------------------------------------------------------------------------------------
    def journal(self) -> list[Entry]:
        return list(read_journal(self.logdir / "procsv" / "journal.jsonl"))

    def events(self, name: str) -> list[Entry]:
        return [entry for entry in self.journal() if entry["event"] == name]

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def status(self) -> Entry:
        answer = procsv("status", str(self.logdir), "--json")
        assert answer.returncode == 0, answer.stderr
        status: Entry = json.loads(answer.stdout)
        return status

    def pid(self, role: str) -> int:
        """The newest process of that role."""
        if role == "watchdog":
            return self.process.pid
        spawned = [e for e in self.journal() if e["event"] == "spawned" and e["role"] == role]
        return int(spawned[-1]["pid"])

    # -- waiting for news ------------------------------------------------------------------------------------
    def wait_for(self, what: str, found: Callable[[], Any]) -> Any:
        deadline_s, pause = time.monotonic() + NEWS_S_MAX, threading.Event()
        while not (result := found()):
            assert time.monotonic() < deadline_s, f"no {what} in {NEWS_S_MAX:.0f} s; journal: {self.journal()}"
            assert self.process.poll() is None or found(), f"ended before {what}: {self.said()[-3000:]}"
            pause.wait(LOOK_S)
        return result

    def wait_event(self, name: str, count: int = 1) -> list[Entry]:
        """Waits until `name` stands in the journal `count` times."""
        found: list[Entry] = self.wait_for(f"{count} x {name}", lambda: _enough(self.events(name), count))
        return found

    def wait_spawned(self, role: str, count: int = 1) -> None:
        """Waits until that role has been started `count` times."""

        def enough() -> bool:
            return len([e for e in self.events("spawned") if e["role"] == role]) >= count

        self.wait_for(f"{count} x {role}", enough)

    def wait_end(self) -> int:
        try:
            return self.process.wait(NEWS_S_MAX)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"has not ended; journal: {self.journal()[-5:]}; said {self.said()[-2000:]}") from None

    # -- faults ----------------------------------------------------------------------------------------------
    def kill(self, role: str, number: int = signal.SIGKILL) -> int:
        """Sends a signal to the newest process of that role; its pid."""
        pid = self.pid(role)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return pid


def _enough(entries: list[Entry], count: int) -> list[Entry]:
    return entries if len(entries) >= count else []


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1", **more}


def procsv(*args: str, timeout_s: float = 60.0, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs one command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "procsv", *args],
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@contextlib.contextmanager
def launched(
    logdir: Path, *args: str, cwd: Path | None = None, launcher: Sequence[str] = (), **env: str
) -> Iterator[Launched]:
    """`procsv launch --logdir LOGDIR ARGS…` (or `launcher LOGDIR ARGS…`); ended, processes and all, with the block."""
    command = launcher or [sys.executable, "-m", "procsv", "launch", "--logdir"]
    logdir.parent.mkdir(parents=True, exist_ok=True)
    output = logdir.with_name(f"{logdir.name}.out")
    with output.open("a") as stream:
        process = subprocess.Popen(
            [*command, str(logdir), *args],
            env=environment(**env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
        )
    run = Launched(logdir, process, output)
    try:
        yield run
    finally:
        if process.poll() is None:
            _end(run)


def _end(run: Launched) -> None:
    """The way out of a test that has failed: whatever the run is made of."""
    pids = {entry["pid"] for entry in run.events("spawned")}
    with contextlib.suppress(psutil.Error):
        pids |= {child.pid for child in psutil.Process(run.process.pid).children(recursive=True)}
    run.process.kill()
    run.process.wait()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            if "procsv" in " ".join(psutil.Process(pid).cmdline()):
                psutil.Process(pid).kill()
