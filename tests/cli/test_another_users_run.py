"""Every command says in one line that a run belongs to another user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from procsv.base.run.run_file import RunFile
from tests.cli.test_commands import ROOT, a_run

STRANGER = 54321
_DROP = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: what root may read against the modes
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-m", "procsv.cli.main", *sys.argv[1:]])
"""


def run_closed(run: RunFile, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command while the run's records belong to another user and are unreadable."""
    if os.geteuid() == 0:
        os.chown(run.paths.home, STRANGER, STRANGER)
    run.paths.home.chmod(0o000)
    try:
        return subprocess.run(
            [sys.executable, "-c", _DROP, *command],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        run.paths.home.chmod(0o700)


def test_ls_lists_an_unreadable_run_as_unreadable(tmp_path: Path) -> None:
    run = a_run(tmp_path / "theirs")
    a_run(tmp_path / "mine")
    (tmp_path / "no_run").mkdir()
    for closed in (tmp_path / "runs" / "closed", tmp_path / "any"):
        closed.mkdir(parents=True)
        if os.geteuid() == 0:
            os.chown(closed, STRANGER, STRANGER)
        closed.chmod(0o000)
    done = run_closed(run, "ls", "--json", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = [(row["directory"], row["state"], row["step"]) for row in json.loads(done.stdout)]
    assert rows == [
        (str(tmp_path / "mine"), "interrupted", 840),
        (str(tmp_path / "runs" / "closed"), "not readable", None),
        (str(tmp_path / "theirs"), "not readable", None),
    ]
    (tmp_path / "runs" / "closed").chmod(0o700)
    (tmp_path / "any").chmod(0o700)
    assert "not readable" in run_closed(run, "ls", str(tmp_path)).stdout


@pytest.mark.parametrize("command", ["status", "stop", "logs", "report", "restart", "preempt"])
def test_row_43_another_users_run_gives_one_line(tmp_path: Path, command: str) -> None:
    run = a_run(tmp_path / "l")
    run.paths.journal.touch()
    done = run_closed(run, command, str(tmp_path / "l"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "permission denied" in done.stderr
    if os.geteuid() == 0:
        assert f"belongs to user {STRANGER}" in done.stderr
