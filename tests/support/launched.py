"""A run of `procsv launch` under test: the same that procsv.testing gives to its users."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from procsv.cli.query import find_run
from procsv.cli.status import read_status
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.testing.run import Run, start_cold, start_launch
from procsv.testing.run import environment as _environment
from procsv.testing.template.client import SESSION, TemplateProcess
from tests.support.journal import check_journal
from tests.support.programs import ROOT

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

NOT_SAVED = (70, 130)  # the exit codes of a run that is stopped with nothing saved: it was killed, or interrupted

# A machine that somebody else has to himself for minutes has not failed a test.
NEWS_S_MAX = float(os.environ.get("PROCSV_TEST_DEADLINE", "300"))


class Launched(Run):
    """Answers for its status without an interpreter for each time that it is asked: tests ask until something is so."""

    def ask_status(self) -> dict[str, Any]:
        return read_status(find_run(str(self.logdir)))


PYTHONPATH = {"PYTHONPATH": str(ROOT)}  # so that programs under test find tests.support


def environment(**more: str) -> dict[str, str]:
    return _environment({**PYTHONPATH, **more})


def procsv(
    *args: str, timeout_s: float = NEWS_S_MAX, template: bool = False, within: Sequence[str] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs one command to its end, in a fork of the session's template.

    What a drill starts are forks of it, too; so is what a launch starts, where `template` says so.  `within`: as of `launched`.
    """
    argv, variables = [sys.executable, "-m", "procsv", *args], environment(**env)
    return _run_by_template(argv, variables, timeout_s, attaches=template or args[0] == "drill", within=within)


def python(
    program: Path | str, *args: str, timeout_s: float = NEWS_S_MAX, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program, a file or a module, to its end in a fork of the session's template, which has imported TensorFlow."""
    return _run_by_template(_argv(program, *args), environment(**env), timeout_s, attaches=False)


@contextlib.contextmanager
def background(
    program: Path | str, *args: str, output: IO[str], errors: IO[str], cwd: Path | None = None
) -> Iterator[TemplateProcess | subprocess.Popen[str]]:
    """Such a fork, for the length of a block; its standard input is empty."""
    argv, variables = _argv(program, *args), environment()
    forked = SESSION.launch(argv, variables, cwd, output, errors, attaches=False)
    process = forked or start_cold(argv, variables, cwd, output, errors)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _argv(program: Path | str, *args: str) -> list[str]:
    return [sys.executable, "-m", "tests.support.run_path", str(program), *args]


def _run_by_template(
    argv: list[str], variables: dict[str, str], timeout_s: float, *, attaches: bool, within: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        forked = SESSION.launch(argv, variables, None, output, errors, attaches=attaches, within=within)
        process = forked or start_cold(argv, variables, None, output, errors, within=within)
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        for stream in (output, errors):
            stream.seek(0)
        return subprocess.CompletedProcess(argv, code, output.read(), errors.read())


def settings_text(**settings: Any) -> str:
    """LaunchSettings as the launchers of the tests read them."""
    return msgspec.json.encode(LaunchSettings(**settings)).decode()


@contextlib.contextmanager
def launched(
    logdir: Path,
    *args: str,
    cwd: Path | None = None,
    launcher: Sequence[str] = (),
    standby: str | None = "off",
    template: bool = True,
    within: Sequence[str] = (),
    **env: str,
) -> Iterator[Launched]:
    """`procsv launch --logdir LOGDIR ARGS…` (or `launcher LOGDIR ARGS…`); ended, processes and all, with the block.

    `standby` None leaves the default; most tests are about something else, and a standby takes seconds of a core.
    `template` False: all of it are fresh interpreters, which import what they need, and no forks.  `within`: a file, a function of it
    that changes what surrounds the run, and that one's arguments (procsv/testing/template/within.py).
    """
    options = () if launcher or standby is None else ("--standby", standby)
    variables = {**PYTHONPATH, **env}
    run = Launched(logdir, *start_launch(logdir, (*options, *args), variables, cwd, launcher, template, within))
    try:
        yield run
    finally:
        run.end()
    check_journal(run.logdir)


def remove_live(directory: Path) -> None:
    """Removes a directory that processes write to: at once, so that nothing that they make meanwhile is in the way."""
    gone = directory.with_name(f".{directory.name}.gone")
    directory.rename(gone)
    shutil.rmtree(gone)
