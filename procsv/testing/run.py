"""Control a run of `procsv launch` in a test.

The plugin's fixture and procsv's own tests use it. The processes are real, and the test observes
them through the files that a user has. Every wait is for something that the run does, never for
time to pass. Every wait has a deadline, and fails with the journal in its message when the deadline
passes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import psutil

from procsv.base.encoding import encode_json
from procsv.base.journal.file import JournalReader
from procsv.base.run.cleanup import remove_dirs, remove_run_files, remove_shm_files
from procsv.base.run.paths import find_paths
from procsv.base.run.run_file import read_run
from procsv.base.system.system_clock import SystemClock
from procsv.report.account import Account
from procsv.report.reading import read_story

NEWS_S_MAX = 90.0  # longest wait for a single event on a busy machine; PROCSV_TEST_DEADLINE overrides it
LOOK_S = 0.02
AGAIN_S = 0.3
END_S_MAX = 20.0  # how long a run may take to end after Ctrl-C before it is killed
ANSWER_S_MAX = 20.0  # how long to keep asking a live watchdog for its status
SHOWN_CHARS = 3000  # how much output the message of a failed wait shows
SHOWN_LINES = 40  # how much output the report of a failed test shows
SHOWN_EVENTS = 15

Entry = dict[str, Any]
T = TypeVar("T")


def news_s_max(otherwise: float = NEWS_S_MAX) -> float:
    return float(os.environ.get("PROCSV_TEST_DEADLINE", otherwise))


class Run:
    """One `procsv launch`."""

    def __init__(self, logdir: Path, process: subprocess.Popen[str], output: Path, news_s: float | None = None) -> None:
        """`news_s`: the longest wait for any single event."""
        self.logdir, self.process, self.output = logdir, process, output
        self._news_s_max = news_s_max(NEWS_S_MAX if news_s is None else news_s)
        self._journal = JournalReader(logdir / "procsv" / "journal.jsonl")

    # -- what a user sees ------------------------------------------------------------------------------------
    def journal(self) -> list[Entry]:
        """Return the journal's lines so far, as JSON objects."""
        return [json.loads(encode_json(line.as_dict())) for line in self._journal.lines()]

    def events(self, name: str, role: str | None = None) -> list[Entry]:
        """Return the events with this name and, if given, this role."""
        return [entry for entry in self.journal() if entry["event"] == name and role in (None, entry["role"])]

    def said(self) -> str:
        """Return what the watchdog and the program have printed."""
        return self.output.read_text(errors="replace")

    def status(self) -> Entry:
        """Return `procsv status --json`, once the run has begun.

        On a busy machine the watchdog may not answer within the command's one second. The command
        then reads files that may be a second old and name no processes. So this method asks again,
        for up to ANSWER_S_MAX.
        """
        self.wait_event("run_started")
        # run.json is written after the journal's first event.
        self.wait_for("run.json", lambda: read_run(find_paths(self.logdir).run_json) is not None)
        until_s = time.monotonic() + ANSWER_S_MAX
        while True:
            status = self.ask_status()
            if status["processes"] or not status["running"] or time.monotonic() > until_s:
                return status

    def ask_status(self) -> Entry:
        """Return the answer of one `procsv status --json`."""
        argv = [sys.executable, "-m", "procsv", "status", str(self.logdir), "--json"]
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=self._news_s_max, check=True)
        status: Entry = json.loads(answer.stdout)
        return status

    def step(self) -> int:
        """Return the global step in run.json; -1 if there is none yet."""
        run = read_run(find_paths(self.logdir).run_json)
        return run.step if run is not None else -1

    def account(self) -> Account:
        """Return the account of the run's time, as `procsv report` shows it."""
        return read_story(self.logdir, SystemClock()).account

    def lost_steps(self) -> int:
        """Return how many steps all crashes together made the run redo."""
        return self.account().lost_steps

    def pid(self, role: str) -> int:
        """Return the pid of the newest process with that role; wait for the first one."""
        if role == "watchdog":
            return self.process.pid
        return int(self.wait_event("spawned", role=role)[-1]["pid"])

    def summary(self) -> str:
        """Describe the run for a person: its state, the end of its output, and the last events."""
        code = self.process.poll()
        printed, events = self.said().splitlines(), self.journal()
        lines = [f"it has ended with exit code {code}" if code is not None else "it is still running"]
        lines += [f"-- the last {min(SHOWN_LINES, len(printed))} of {len(printed)} lines printed:"]
        lines += printed[-SHOWN_LINES:]
        lines += [f"-- the last {min(SHOWN_EVENTS, len(events))} of {len(events)} events:"]
        lines += [json.dumps(entry) for entry in events[-SHOWN_EVENTS:]]
        return "\n".join(lines)

    # -- waiting for news ------------------------------------------------------------------------------------
    def wait_for(self, what: str, found: Callable[[], T]) -> T:
        """Wait until `found()` is true, and return its result; `what` names it in the error."""
        limit_s = self._news_s_max
        deadline_s, pause = time.monotonic() + limit_s, threading.Event()
        while not (result := found()):
            assert time.monotonic() < deadline_s, f"no {what} in {limit_s:g} s; journal: {self.journal()}"
            is_over = self.process.poll() is not None
            assert not is_over or found(), f"ended before {what}: {self.said()[-SHOWN_CHARS:]}"
            pause.wait(LOOK_S)
        return result

    def wait_event(self, name: str, count: int = 1, role: str | None = None) -> list[Entry]:
        """Wait until the journal has `count` events with this name; return all such events."""

        def enough() -> list[Entry]:
            entries = self.events(name, role)
            return entries if len(entries) >= count else []

        return self.wait_for(f"{count} x {name}", enough)

    def wait_spawned(self, role: str, count: int = 1) -> None:
        """Wait until the watchdog has started that role `count` times."""
        self.wait_event("spawned", count, role)

    def wait_step(self, step: int) -> None:
        """Wait until the program has reached `step`."""
        self.wait_for(f"step {step}", lambda: self.step() >= step)

    def wait_end(self, timeout: float | None = None) -> int:
        """Return the exit code of `procsv launch`; negative if a signal ended it.

        AssertionError after `timeout` seconds.
        """
        limit_s = self._news_s_max if timeout is None else timeout
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            said = self.said()[-SHOWN_CHARS:]
            raise AssertionError(
                f"has not ended in {limit_s:g} s; journal: {self.journal()[-5:]}; said {said}"
            ) from None

    def assert_completed(self, timeout: float | None = None) -> None:
        """Wait for the end, and fail if the training is not complete."""
        code = self.wait_end(timeout)
        ended = [e for e in self.journal() if e["event"] in ("run_completed", "stopped", "gave_up")]
        how = {key: value for key, value in ended[-1].items() if key != "time"} if ended else "no such event"
        assert code == 0, f"procsv launch ended with exit code {code}; the end in the journal: {how}"

    # -- faults ----------------------------------------------------------------------------------------------
    def kill(self, role: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to the newest process with that role, and return its pid."""
        pid = self.pid(role)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return pid

    def end(self) -> None:
        """End everything that still runs, and kill what does not end within END_S_MAX.

        The fixture calls this at the end of each test.
        """
        until_s = time.monotonic() + END_S_MAX
        while self.process.poll() is None and time.monotonic() < until_s:
            self.process.send_signal(signal.SIGINT)  # a second Ctrl-C means "now"; two at the same moment count as one
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(AGAIN_S)
        if self.process.poll() is None:
            self._kill_all()

    def _kill_all(self) -> None:
        """Kill a run that has not ended after SIGINT, and remove all that it leaves."""
        pids = {entry["pid"] for entry in self.journal() if entry["event"] in ("spawned", "promoted")}
        with contextlib.suppress(psutil.Error):
            pids |= {child.pid for child in psutil.Process(self.process.pid).children(recursive=True)}
        self.process.kill()
        self.process.wait()
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                if "procsv" in " ".join(psutil.Process(pid).cmdline()):
                    psutil.Process(pid).kill()
        paths = find_paths(self.logdir)
        remove_shm_files(paths)
        for copy in paths.shm_dir.parent.glob(f"{paths.shm_dir.name}-mirror-*"):  # members that were killed kept these
            shutil.rmtree(copy, ignore_errors=True)
        remove_run_files(paths, keep=frozenset())
        remove_dirs(paths)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program under test: ours, `more`, no GPU, unbuffered output."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **quiet, **more}


def start(
    logdir: Path,
    args: Sequence[str],
    env: Mapping[str, str],
    cwd: Path | None = None,
    launcher: Sequence[str] = (),
    news_s: float | None = None,
) -> Run:
    """Run `procsv launch --logdir LOGDIR ARGS…` in the background."""
    return Run(logdir, *start_launch(logdir, args, env, cwd, launcher), news_s)


def start_launch(
    logdir: Path,
    args: Sequence[str],
    env: Mapping[str, str],
    cwd: Path | None = None,
    launcher: Sequence[str] = (),
) -> tuple[subprocess.Popen[str], Path]:
    """Start a launch; return its process and the file beside the logdir that receives its output.

    `launcher` replaces the words before the logdir.
    """
    command = launcher or (sys.executable, "-m", "procsv", "launch", "--logdir")
    logdir.parent.mkdir(parents=True, exist_ok=True)
    output = logdir.with_name(f"{logdir.name}.out")
    with output.open("a") as stream:
        return start_command([*command, str(logdir), *args], environment(env), cwd, stream), output


def start_command(
    argv: Sequence[str],
    variables: Mapping[str, str],
    cwd: Path | None,
    output: IO[str],
    errors: IO[str] | None = None,
) -> subprocess.Popen[str]:
    """Start a process without standard input. If `errors` is None, its errors go to `output`."""
    return subprocess.Popen(
        list(argv),
        env=variables,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors or subprocess.STDOUT,
        text=True,
    )
