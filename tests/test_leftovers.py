"""What a test leaves behind is found, reported and removed, here and in a separate pytest whose
tests do leave things.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.support.launched import NEWS_S_MAX, environment
from tests.support.leftovers import Leftovers
from tests.support.programs import ROOT

CONFTEST = """
import tests.support.leftovers
from tests.conftest import leftovers

tests.support.leftovers.GONE_WITHIN_S = 1.0
"""
# It records where each thing is. The process has a child and no parent: its runtime directory
# identifies it.
LEAVES = """
import os, pathlib, subprocess, sys, tempfile
from procsv.base.run.paths import make_paths

HERE = pathlib.Path(__file__).parent
FORKS = "import os, signal; os.fork(); os.write(1, b'%d\\\\n' % os.getpid()); signal.pause()"

def test_leaves(tmp_path):
    daemon = ["setsid", "--fork", sys.executable, "-c", FORKS]
    with subprocess.Popen(daemon, stdout=subprocess.PIPE, text=True) as started:
        pids = [started.stdout.readline().strip(), started.stdout.readline().strip()]
    assert all(map(str.isdigit, pids))
    subprocess.Popen(["sleep", "1000"])
    paths = make_paths(tmp_path / "logdir")
    for directory in (paths.run_dir, paths.shm_dir):
        directory.mkdir()
        (directory / "some").write_text("thing")
    nested = pathlib.Path(tempfile.mkdtemp())
    (nested / "file").touch()
    file, name = tempfile.mkstemp()
    (HERE / "pids").write_text("\\n".join(pids))
    (HERE / "files").write_text("\\n".join(map(str, [paths.run_dir, paths.shm_dir, nested, name])))

def runs(pid):
    # A process whose parent has not asked how it has ended has no arguments any more.
    try:
        return pathlib.Path("/proc", pid, "cmdline").read_text() != ""
    except OSError:
        return False

def test_next(tmp_path):
    assert not [pid for pid in (HERE / "pids").read_text().split() if runs(pid)]
    assert not [file for file in (HERE / "files").read_text().split() if os.path.exists(file)]
"""


@pytest.mark.fault
def test_a_test_that_leaves_something_fails_with_a_report_and_the_next_test_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_leaves.py").write_text(LEAVES)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp", "own", "-rA"]
    told = environment(PYTHONPATH=str(ROOT), COLUMNS="1000")
    done = subprocess.run(
        command, cwd=tmp_path, env=told, capture_output=True, text=True, timeout=NEWS_S_MAX, check=False
    )
    results = re.findall(r"^(PASSED|FAILED|ERROR) test_leaves.py::(\w+)", done.stdout, re.MULTILINE)
    assert sorted(results) == [("ERROR", "test_leaves"), ("PASSED", "test_leaves"), ("PASSED", "test_next")], (
        done.stdout
    )
    said = next(line for line in done.stdout.splitlines() if line.startswith("E ") and "left behind" in line)
    for pid in (tmp_path / "pids").read_text().split():
        assert f"process {pid} " in said
    assert "sleep 1000" in said
    for file in (tmp_path / "files").read_text().split():
        assert file in said


def test_temporary_files_are_found_unless_killed_libraries_left_them(tmp_path: Path) -> None:
    left = Leftovers(tmp_path / "runtime", Path(tempfile.gettempdir()), tmp_path)
    for name in ("__autograph_generated_file1234.py", "pymp-1234"):
        Path(tempfile.gettempdir(), name).touch()
    assert left.look() == []
    with tempfile.NamedTemporaryFile() as file:
        assert left.look() == [file.name]


def test_a_process_left_by_a_test_leaves_no_zombie_for_the_next_test(tmp_path: Path) -> None:
    left = Leftovers(tmp_path / "runtime", Path(tempfile.gettempdir()), tmp_path)
    process = subprocess.Popen(["sleep", "1000"])  # its parent never reaps it
    left.remove()
    assert not psutil.pid_exists(process.pid)
    assert process.returncode == -signal.SIGKILL
