"""A launch with too few file descriptors says so in one line and starts nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from procsv.base import exit_codes
from procsv.base.system.processes import DESCRIPTORS_MIN

ROOT = Path(__file__).parents[2]
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv.pop(1)),) * 2)
from procsv.cli.main import main
sys.exit(main())
"""


def launch(directory: Path, limit: int) -> subprocess.CompletedProcess[str]:
    (directory / "train.py").write_text("print('begun', flush=True)\n")
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), "launch", "--logdir", "run", "train.py"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_launch_with_too_few_descriptors_names_the_number_it_needs_and_starts_nothing(tmp_path: Path) -> None:
    done = launch(tmp_path, 28)
    assert done.returncode == exit_codes.GAVE_UP, done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert "open 28 files (ulimit -n)" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_launch_with_the_requested_number_of_descriptors_runs(tmp_path: Path) -> None:
    done = launch(tmp_path, DESCRIPTORS_MIN)
    assert done.returncode == exit_codes.DONE, done.stderr
    assert "begun" in done.stdout
