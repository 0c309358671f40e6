"""Run `procsv launch` for a test, with the same `Run` that procsv.testing gives its users."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from procsv.cli.directory import find_run
from procsv.cli.status import read_status
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.testing.run import Run, start_command, start_launch
from procsv.testing.run import environment as _environment
from tests.support.journal import check_journal
from tests.support.programs import ROOT
from tests.support.within import go_within

__all__ = [
    "NEWS_S_MAX",
    "NOT_SAVED",
    "Launched",
    "background",
    "environment",
    "launched",
    "procsv",
    "python",
    "remove_live",
    "settings_text",
]

NOT_SAVED = (70, 130)  # exit codes of a run that is stopped with nothing saved: killed, or interrupted

# A test does not fail because the machine was busy for minutes.
NEWS_S_MAX = float(os.environ.get("PROCSV_TEST_DEADLINE", "300"))


class Launched(Run):
    """A run that reads its status in this process: tests poll it, and an interpreter for each poll is slow."""

    def ask_status(self) -> dict[str, Any]:
        return read_status(find_run(str(self.logdir)))

    def digest(self) -> str:
        """Return the newest digest that the program has printed."""
        found = re.findall(r"digest ([0-9a-f]{16})", self.said())
        assert found, self.summary()
        return str(found[-1])

    def digest_at_end(self) -> str:
        """Wait until the training is complete, and return the last digest."""
        self.assert_completed()
        return self.digest()


LAUNCH = (sys.executable, "-m", "procsv", "launch", "--logdir")
PYTHONPATH = {"PYTHONPATH": str(ROOT)}  # so that programs under test find tests.support


def environment(**more: str) -> dict[str, str]:
    return _environment({**PYTHONPATH, **more})


def procsv(
    *args: str, timeout_s: float = NEWS_S_MAX, within: Sequence[str] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end. `within` is as in `launched`."""
    return _run(go_within(within, [sys.executable, "-m", "procsv", *args]), timeout_s, env)


def python(
    program: Path | str, *args: str, timeout_s: float = NEWS_S_MAX, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a program, given as a file or a module, to its end."""
    return _run(_argv(program, *args), timeout_s, env)


@contextlib.contextmanager
def background(
    program: Path | str, *args: str, output: IO[str], errors: IO[str], cwd: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a program for the length of a block."""
    process = start_command(_argv(program, *args), environment(), cwd, output, errors)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _argv(program: Path | str, *args: str) -> list[str]:
    return [sys.executable, *((str(program),) if str(program).endswith(".py") else ("-m", str(program))), *args]


def _run(argv: list[str], timeout_s: float, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )


def settings_text(**settings: Any) -> str:
    """Encode LaunchSettings for the launchers of the tests."""
    return msgspec.json.encode(LaunchSettings(**settings)).decode()


@contextlib.contextmanager
def launched(
    logdir: Path,
    *args: str,
    cwd: Path | None = None,
    launcher: Sequence[str] = (),
    standby: str | None = "off",
    within: Sequence[str] = (),
    **env: str,
) -> Iterator[Launched]:
    """Run `procsv launch --logdir LOGDIR ARGS…` (or `launcher LOGDIR ARGS…`) until the block ends,
    then end its processes.

    `standby` is off because most tests do not need one and it costs seconds of a core; None keeps
    the default. `within` names a file, a function in it that changes the run's surroundings, and
    the function's arguments (within.py).
    """
    options = () if launcher or standby is None else ("--standby", standby)
    variables = {**PYTHONPATH, **env}
    command = go_within(within, launcher or LAUNCH)
    run = Launched(logdir, *start_launch(logdir, (*options, *args), variables, cwd, command))
    try:
        yield run
    finally:
        run.end()
    check_journal(run.logdir)


def remove_live(directory: Path) -> None:
    """Remove a directory that processes still write to. It is renamed first, so that their new
    files cannot interfere.
    """
    gone = directory.with_name(f".{directory.name}.gone")
    directory.rename(gone)
    shutil.rmtree(gone)
