"""A run.json that another user planted in a logdir harms no command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from procsv.base.run.paths import find_paths
from procsv.base.run.run_file import find_run_in
from procsv.base.system.locks import FileLock
from procsv.base.system.processes import identify
from procsv.cli.directory import find_run
from tests.cli.test_commands import a_run, procsv

STRANGER = 54321
COMMANDS = (("stop",), ("stop", "--now"), ("preempt", "--grace", "1s"), ("restart",))


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours that belongs to no run."""
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait()


def forge(logdir: Path, bystander: subprocess.Popen[bytes], **changes: object) -> None:
    them = identify(bystander.pid)
    a_run(logdir, pid=them.pid, started=them.started, boot=them.boot, **changes)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_row_45_a_process_that_does_not_hold_the_runs_lock_is_left_alone(
    tmp_path: Path, bystander: subprocess.Popen[bytes], command: tuple[str, ...]
) -> None:
    forge(tmp_path / "l", bystander)
    done = procsv(*command, str(tmp_path / "l"))
    assert "Traceback" not in done.stderr
    assert bystander.poll() is None


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_row_45_a_file_of_another_user_names_no_process_of_ours(
    tmp_path: Path, bystander: subprocess.Popen[bytes], command: tuple[str, ...]
) -> None:
    forge(tmp_path / "l", bystander)
    os.chown(tmp_path / "l" / "procsv" / "run.json", STRANGER, STRANGER)
    run = find_run_in(find_paths(tmp_path / "l"))
    assert run is not None
    assert not run.is_active
    done = procsv(*command, str(tmp_path / "l"))
    assert "no run" in done.stdout + done.stderr
    assert bystander.poll() is None


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_row_45_directories_named_in_a_file_are_not_touched(
    tmp_path: Path, bystander: subprocess.Popen[bytes], command: tuple[str, ...]
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o700)
    for name in ("my.lock", "slot.1.0", "run.lock", "control.sock"):
        (precious / name).write_text("precious")
    with (precious / "run.lock").open() as lock:
        forge(tmp_path / "l", bystander, run_dir=str(precious), shm_dir=str(precious))
        done = procsv(*command, str(tmp_path / "l"))
    assert lock.closed
    assert "no run" in done.stdout + done.stderr
    assert len(list(precious.iterdir())) == 4
    assert bystander.poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_a_run_is_found_on_a_filesystem_that_gives_our_files_to_another_user(tmp_path: Path) -> None:
    run = a_run(tmp_path / "l", started=identify(os.getpid()).started)
    os.chown(run.paths.run_json, STRANGER, STRANGER)
    run.paths.run_dir.mkdir(mode=0o700)
    lock = FileLock(run.paths.run_lock)
    try:
        assert lock.try_acquire("procsv launch", 1.0)
        assert find_run(str(tmp_path / "l")).is_active
    finally:
        lock.release()
        run.paths.run_dir.rmdir()
