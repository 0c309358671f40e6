"""A run of `procsv launch` under test: real processes, watched through the files that a user has.

Used by the plugin's fixture, and by procsv's own tests.  Every wait is for news in the journal, never for time, and has a
deadline; a wait that is in vain fails with the journal and what the program has printed.
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

NEWS_S_MAX = 90.0  # how long any single piece of news may take on a busy machine; PROCSV_TEST_DEADLINE says otherwise
LOOK_S = 0.02
AGAIN_S = 0.3
END_S_MAX = 20.0  # what a run that is told to end at once may take; then it is killed
ANSWER_S_MAX = 20.0  # how long a watchdog that runs is asked for its status
SHOWN_CHARS = 3000  # of what the program has printed, in the message of a failed wait
SHOWN_LINES = 40  # of what was printed, in the report of a failed test
SHOWN_EVENTS = 15

Entry = dict[str, Any]
T = TypeVar("T")


def news_s_max(otherwise: float = NEWS_S_MAX) -> float:
    return float(os.environ.get("PROCSV_TEST_DEADLINE", otherwise))


class Run:
    """One `procsv launch`."""

    def __init__(self, logdir: Path, process: subprocess.Popen[str], output: Path, news_s: float | None = None) -> None:
        """`news_s`: how long any single piece of news may take."""
        self.logdir, self.process, self.output = logdir, process, output
        self._news_s_max = news_s_max(NEWS_S_MAX if news_s is None else news_s)
        self._journal = JournalReader(logdir / "procsv" / "journal.jsonl")

    # -- what a user sees ------------------------------------------------------------------------------------
    def journal(self) -> list[Entry]:
        """The journal's lines so far, as JSON has them."""
        return [json.loads(encode_json(line.as_dict())) for line in self._journal.lines()]

    def events(self, name: str, role: str | None = None) -> list[Entry]:
        """Those of one name, and of one role where it is given."""
        return [entry for entry in self.journal() if entry["event"] == name and role in (None, entry["role"])]

    def said(self) -> str:
        """What watchdog and program have printed."""
        return self.output.read_text(errors="replace")

    def status(self) -> Entry:
        """What `procsv status --json` says now, or as soon as the run has begun.

        On a busy machine the watchdog may not answer within the second that the command gives it, which then reads files of up to
        a second ago: it is asked again for a while.
        """
        self.wait_event("run_started")
        self.wait_for(
            "run.json", lambda: read_run(find_paths(self.logdir).run_json) is not None
        )  # which is written next
        until_s = time.monotonic() + ANSWER_S_MAX
        while True:
            status = self.ask_status()
            if status["processes"] or not status["running"] or time.monotonic() > until_s:
                return status

    def ask_status(self) -> Entry:
        """The answer of one `procsv status --json`."""
        argv = [sys.executable, "-m", "procsv", "status", str(self.logdir), "--json"]
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=self._news_s_max, check=True)
        status: Entry = json.loads(answer.stdout)
        return status

    def step(self) -> int:
        """The global step as last read, from run.json; -1 if there is none yet."""
        run = read_run(find_paths(self.logdir).run_json)
        return run.step if run is not None else -1

    def account(self) -> Account:
        """What became of the time, as `procsv report` says it."""
        return read_story(self.logdir, SystemClock()).account

    def lost_steps(self) -> int:
        """How many steps had to be made again, over all crashes."""
        return self.account().lost_steps

    def pid(self, role: str) -> int:
        """The newest process of that role; waits for the first."""
        if role == "watchdog":
            return self.process.pid
        return int(self.wait_event("spawned", role=role)[-1]["pid"])

    def summary(self) -> str:
        """How it stands, for a person: the end of what was printed, and the last events."""
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
        """Waits until `found()` is true, and returns it; `what` names it if that is in vain."""
        limit_s = self._news_s_max
        deadline_s, pause = time.monotonic() + limit_s, threading.Event()
        while not (result := found()):
            assert time.monotonic() < deadline_s, f"no {what} in {limit_s:g} s; journal: {self.journal()}"
            is_over = self.process.poll() is not None
            assert not is_over or found(), f"ended before {what}: {self.said()[-SHOWN_CHARS:]}"
            pause.wait(LOOK_S)
        return result

    def wait_event(self, name: str, count: int = 1, role: str | None = None) -> list[Entry]:
        """Waits until `name` stands in the journal `count` times."""

        def enough() -> list[Entry]:
            entries = self.events(name, role)
            return entries if len(entries) >= count else []

        return self.wait_for(f"{count} x {name}", enough)

    def wait_spawned(self, role: str, count: int = 1) -> None:
        """Waits until that role has been started `count` times."""
        self.wait_event("spawned", count, role)

    def wait_step(self, step: int) -> None:
        """Waits until the program has come to `step`."""
        self.wait_for(f"step {step}", lambda: self.step() >= step)

    def wait_end(self, timeout: float | None = None) -> int:
        """The exit code of `procsv launch`; negative if a signal has ended it.  AssertionError after `timeout` seconds."""
        limit_s = self._news_s_max if timeout is None else timeout
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            said = self.said()[-SHOWN_CHARS:]
            raise AssertionError(
                f"has not ended in {limit_s:g} s; journal: {self.journal()[-5:]}; said {said}"
            ) from None

    def assert_completed(self, timeout: float | None = None) -> None:
        """Waits for the end, and fails unless the program has come to its own."""
        code = self.wait_end(timeout)
        ended = [e for e in self.journal() if e["event"] in ("run_completed", "stopped", "gave_up")]
        how = {key: value for key, value in ended[-1].items() if key != "time"} if ended else "no such event"
        assert code == 0, f"procsv launch ended with exit code {code}; the end in the journal: {how}"

    # -- faults ----------------------------------------------------------------------------------------------
    def kill(self, role: str, number: int = signal.SIGKILL) -> int:
        """Sends a signal to the newest process of that role; its pid."""
        pid = self.pid(role)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return pid

    def end(self) -> None:
        """Ends whatever still runs, without waiting for the program: the way out of a test that has failed."""
        until_s = time.monotonic() + END_S_MAX
        while self.process.poll() is None and time.monotonic() < until_s:
            self.process.send_signal(signal.SIGINT)  # as by Ctrl-C: the second means now, and two at once are one
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(AGAIN_S)
        if self.process.poll() is None:
            self._kill_all()

    def _kill_all(self) -> None:
        """It does not even end when it is told to; nothing of it stays."""
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
        for copy in paths.shm_dir.parent.glob(f"{paths.shm_dir.name}-mirror-*"):  # of machines that were killed with it
            shutil.rmtree(copy, ignore_errors=True)
        remove_run_files(paths, keep=frozenset())
        remove_dirs(paths)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """What a program under test gets: no GPU, and output as it comes."""
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
    """`procsv launch --logdir LOGDIR ARGS…`, in the background."""
    return Run(logdir, *start_launch(logdir, args, env, cwd, launcher), news_s)


def start_launch(
    logdir: Path,
    args: Sequence[str],
    env: Mapping[str, str],
    cwd: Path | None = None,
    launcher: Sequence[str] = (),
) -> tuple[subprocess.Popen[str], Path]:
    """The process, and the file beside the logdir that it prints to.  `launcher` stands in for the words before the logdir."""
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
    """A process without standard input.  `errors`: None for `output`."""
    return subprocess.Popen(
        list(argv),
        env=variables,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors or subprocess.STDOUT,
        text=True,
    )
