"""A run whose records belong to somebody else: each command says so in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_commands import ROOT, a_run

STRANGER = 54321
_DROP = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: what root may read against the modes
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-m", "procsv.cli.main", *sys.argv[1:]])
"""


@pytest.mark.parametrize("command", ["status", "stop", "logs", "report", "restart", "preempt"])
def test_row_43_a_run_of_another_user_is_one_line(tmp_path: Path, command: str) -> None:
    run = a_run(tmp_path / "l")
    run.paths.journal.touch()
    if os.geteuid() == 0:
        os.chown(run.paths.home, STRANGER, STRANGER)
    run.paths.home.chmod(0o000)
    done = subprocess.run(
        [sys.executable, "-c", _DROP, command, str(tmp_path / "l")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    run.paths.home.chmod(0o700)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "permission denied" in done.stderr
    if os.geteuid() == 0:
        assert f"belongs to user {STRANGER}" in done.stderr
