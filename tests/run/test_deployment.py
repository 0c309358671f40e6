"""The files in docs/deploy run as they stand, and a real run notifies systemd."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from procsv.base import exit_codes
from procsv.base.units import parse_duration
from tests.support.journal import read_journal
from tests.support.launched import NEWS_S_MAX, environment, launched, procsv
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault

DEPLOY = ROOT / "docs" / "deploy"
PROGRAM = "tests.support.numpy_training"
TRAIN = """
import os, runpy, sys
sys.argv[1:] = [os.environ["STEPS"], "0.01"]
runpy.run_module("tests.support.numpy_training", run_name="__main__")
"""


# -- systemd -----------------------------------------------------------------------------------------------------
class Manager:
    """The service manager's end of NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(NEWS_S_MAX)
        self._socket.bind(str(path))
        self.told: list[str] = []

    def wait_told(self, word: str, count: int = 1) -> None:
        while sum(line.startswith(word) for line in self.told) < count:
            self.told += self._socket.recv(2**16).decode().splitlines()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    path = Path(os.environ["XDG_RUNTIME_DIR"]) / "notify"  # short: the path of a socket has 107 bytes
    found = Manager(path)
    yield found
    found.close()
    path.unlink()


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / "procsv-training.service")
    return parser["Service"]


def test_systemd_is_notified_of_readiness_progress_liveness_and_the_end(tmp_path: Path, manager: Manager) -> None:
    address = str(Path(os.environ["XDG_RUNTIME_DIR"]) / "notify")
    args = (PROGRAM, str(10**6), "0.01")
    with launched(tmp_path / "logdir", *args, cwd=ROOT, NOTIFY_SOCKET=address, WATCHDOG_USEC="2000000") as run:
        manager.wait_told("READY=1")
        before = manager.told[: manager.told.index("READY=1")]
        assert before
        assert not any("running" in line for line in before), "nothing is ready before the first step"
        run.wait_event("recovered")
        manager.wait_told("STATUS=running at step")
        manager.wait_told("WATCHDOG=1", count=3)
        trainer = Path(f"/proc/{run.pid('trainer')}/environ").read_bytes()
        assert not re.search(rb"NOTIFY_SOCKET|WATCHDOG_USEC", trainer), "the manager is none of the program's business"
        run.process.terminate()
        manager.wait_told("STOPPING=1")  # read at once: the socket's buffer is small
        assert run.wait_end() == 75
    assert manager.told.count("READY=1") == manager.told.count("STOPPING=1") == 1
    assert any(re.fullmatch(r"STATUS=stopped at step \d+, step \d+ on disk", line) for line in manager.told)


def test_a_complete_run_that_the_manager_starts_again_reports_ready_and_succeeds(
    tmp_path: Path, manager: Manager
) -> None:
    address = str(Path(os.environ["XDG_RUNTIME_DIR"]) / "notify")
    with launched(tmp_path / "logdir", PROGRAM, "20", "0.01", cwd=ROOT) as run:
        assert run.wait_end() == 0
    with launched(tmp_path / "logdir", PROGRAM, "20", "0.01", cwd=ROOT, NOTIFY_SOCKET=address) as run:
        manager.wait_told("STATUS=nothing to do: ")
        assert run.wait_end() == 0
    assert manager.told[:2] == ["READY=1", "STOPPING=1"]


def test_a_manager_that_is_gone_or_belongs_to_another_process_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('done')")
    nobody, program = str(tmp_path / "nobody"), str(tmp_path / "train.py")
    with launched(tmp_path / "logdir", program, NOTIFY_SOCKET=nobody, WATCHDOG_USEC="x", WATCHDOG_PID="1") as run:
        assert run.wait_end() == 0


def test_the_unit_gives_a_stop_time_and_restarts_only_when_a_restart_can_help(tmp_path: Path) -> None:
    service = unit()
    argv = shlex.split(service["ExecStart"])
    assert Path(argv[0]).name == "procsv"
    grace_s = parse_duration(argv[argv.index("--grace") + 1])
    assert parse_duration(service["TimeoutStopSec"]) > grace_s
    assert (service["Type"], service["NotifyAccess"], service["KillMode"]) == ("notify", "main", "mixed")
    resumable, never = str(exit_codes.RESUMABLE), {exit_codes.USAGE, exit_codes.GAVE_UP, exit_codes.LOGDIR_UNUSABLE}
    assert service["SuccessExitStatus"] == service["RestartForceExitStatus"] == resumable
    assert {int(code) for code in service["RestartPreventExitStatus"].split()} == never
    (tmp_path / "train.py").write_text("print('trained')")
    done = subprocess.run(
        [sys.executable, "-m", "procsv", *argv[1:]],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=NEWS_S_MAX,
        check=False,
    )
    assert (done.returncode, "trained" in done.stdout) == (0, True), done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_knows_every_line_of_the_unit(tmp_path: Path) -> None:
    words = (DEPLOY / "procsv-training.service").read_text()
    copy = tmp_path / "procsv-training.service"
    copy.write_text(words.replace("/srv/training/.venv/bin/procsv", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "--man=no", "verify", str(copy)],
        capture_output=True,
        text=True,
        timeout=NEWS_S_MAX,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# -- Docker ------------------------------------------------------------------------------------------------------
def test_the_images_command_runs_and_its_file_says_how_to_give_it_shared_memory(tmp_path: Path) -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    said = dict(re.findall(r"^(ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE))
    argv = [*json.loads(said["ENTRYPOINT"]), *json.loads(said["CMD"])]
    assert argv[0] == "procsv"
    stop_s = re.search(r"--stop-timeout=(\d+)", text)
    assert stop_s is not None
    assert float(stop_s[1]) > parse_duration(argv[argv.index("--grace") + 1])
    assert "--shm-size=" in text
    (tmp_path / "train.py").write_text("print('trained')")
    command = [sys.executable, "-m", *argv]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=NEWS_S_MAX, check=False
    )
    assert (done.returncode, "trained" in done.stdout) == (0, True), done.stderr


# -- Slurm -------------------------------------------------------------------------------------------------------
def start_job(place: Path, **env: str) -> subprocess.Popen[str]:
    """Run train.sbatch in `place` with a scontrol that records its arguments."""
    tools = place / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" >>{shlex.quote(str(place / "told"))}\n')
    (tools / "procsv").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m procsv "$@"\n')
    for tool in tools.iterdir():
        tool.chmod(0o700)
    path = f"{tools}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", str(DEPLOY / "train.sbatch")],
        cwd=place,
        env=environment(PATH=path, PYTHONPATH=str(ROOT), SLURM_JOB_ID="42", **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_slurm_job_notified_of_its_time_limit_saves_requeues_itself_and_completes(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    journal = tmp_path / "runs" / "mine" / "procsv" / "journal.jsonl"
    first = start_job(tmp_path, STEPS=str(10**6))
    deadline_s, pause = time.monotonic() + NEWS_S_MAX, threading.Event()
    while not any(entry["event"] == "ready" for entry in read_journal(journal)):
        assert first.poll() is None
        assert time.monotonic() < deadline_s
        pause.wait(0.02)
    first.send_signal(signal.SIGUSR1)
    said = first.communicate(timeout=NEWS_S_MAX)[0]
    assert first.returncode == 0, said
    assert (tmp_path / "told").read_text() == "requeue 42\n"
    stopped = [entry for entry in read_journal(journal) if entry["event"] == "stopped"][-1]
    assert stopped["durable_step"] == stopped["step"] > 0

    second = start_job(tmp_path, STEPS=str(stopped["step"] + 10))
    said = second.communicate(timeout=NEWS_S_MAX)[0]
    assert second.returncode == 0, said
    assert (tmp_path / "told").read_text() == "requeue 42\n", "a training that is complete is not requeued"
    assert json.loads(procsv("status", str(journal.parents[1]), "--json").stdout)["step"] == stopped["step"] + 10


def test_a_slurm_job_that_fails_passes_on_the_exit_code_and_is_not_requeued(tmp_path: Path) -> None:
    job = start_job(tmp_path, TARGET="nowhere.py")
    said = job.communicate(timeout=NEWS_S_MAX)[0]
    assert (job.returncode, (tmp_path / "told").exists()) == (2, False), said
