"""The commands print, exit and perform as promised."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest

from procsv.base.identity import TRAINER
from procsv.base.outcome import LastExit
from procsv.base.run.lease import Lease, LeaseFile, ProcessSpace, find_place
from procsv.base.run.manifest import Manifest
from procsv.base.run.paths import find_paths
from procsv.base.run.run_file import RunFile, read_run, write_run
from procsv.base.system.locks import DirectoryLock
from procsv.base.system.processes import identify
from procsv.base.units import show_time
from procsv.cli.directory import find_run
from procsv.cli.main import COMMANDS
from procsv.cli.status import read_status
from procsv.ipc.shm.heartbeat import Phase
from procsv.ipc.shm.heartbeat_file import HeartbeatWriter
from tests.support.naming import Naming
from tests.support.programs import until

ROOT = Path(__file__).parents[2]


def procsv(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "procsv.cli.main", *args],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=cwd or ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def a_run(logdir: Path, **changes: object) -> RunFile:
    """Write run.json in `logdir` as a watchdog that is now dead would have left it."""
    paths = find_paths(logdir)
    me = identify(os.getpid())
    run = RunFile(
        run="0123456789abcdef",
        target="train.py",
        logdir=str(paths.logdir),
        run_dir=str(paths.run_dir),
        shm_dir=str(paths.shm_dir),
        pid=me.pid,
        started=me.started - 1.0,
        boot=me.boot,
        state="running",
        incarnation=3,
        step=840,
        durable_step=800,
        started_at=12.5,
    )
    paths.home.mkdir(parents=True)
    run = msgspec.structs.replace(run, **changes)
    write_run(paths.run_json, run, durable=False)
    return run


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys, procsv.cli.main as m\n"
        "try: m.main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print('loaded:', *sys.modules)"
    )
    for args in (["--help"], ["launch", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=300, check=True, cwd=ROOT
        )
        loaded = done.stdout.rpartition("loaded:")[2].split()
        assert not {"tensorflow", "numpy", "rich", "zmq", "keras"} & set(loaded), args


def test_help_is_fast() -> None:
    def spent_s() -> float:
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return spent.ru_utime + spent.ru_stime

    def once() -> float:
        before_s = spent_s()
        assert procsv("--help").returncode == 0
        return spent_s() - before_s

    assert min(once() for _ in range(5)) < 0.3  # seconds of a processor; an idle machine needs 0.15 s


def test_help_lists_every_command_with_the_commands_own_summary() -> None:
    said = procsv("--help").stdout
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", said, re.MULTILINE)
        assert procsv(name, "--help").returncode == 0


def test_launch_help_all_shows_every_default() -> None:
    said = " ".join(procsv("launch", "--help-all").stdout.split())
    for default in (
        "runs/<target name>",
        "default: auto",
        "default: 5",
        "default: 2",
        "default: 3",
        "default: 300s",
        "[default: program=30m, import=30m,",
        "default: 30s",
        "default: 1s..60s",
        "default: 25s",
        "[tool.procsv]",
    ):
        assert default in said


def test_a_misspelt_command_suggests_the_nearest() -> None:
    done = procsv("stauts", "x")

    assert done.returncode == 2
    assert "Did you mean status?" in done.stderr


def test_a_missing_target_is_exit_2_and_makes_no_logdir(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    done = procsv("launch", "--logdir", str(tmp_path / "logdir"), "trian.py", cwd=tmp_path)

    assert done.returncode == 2
    assert "did you mean train.py?" in done.stderr
    assert not (tmp_path / "logdir").exists()


def test_a_logdir_that_cannot_be_created_is_exit_73(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    done = procsv("launch", "--logdir", str(tmp_path / "train.py" / "x"), "train.py", cwd=tmp_path)

    assert done.returncode == 73
    assert "cannot be created" in done.stderr


@pytest.mark.parametrize("command", ["status", "stop", "logs"])
@pytest.mark.parametrize(("directory", "said"), [("", "procsv/run.json"), ("absent", "/absent")])
def test_a_directory_without_a_run_is_exit_2(tmp_path: Path, command: str, directory: str, said: str) -> None:
    done = procsv(command, str(tmp_path / directory))

    assert done.returncode == 2
    assert said in done.stderr


def test_status_reads_the_files_of_a_run_whose_watchdog_was_killed(tmp_path: Path) -> None:
    a_run(tmp_path)
    status = json.loads(procsv("status", str(tmp_path), "--json").stdout)

    assert (status["running"], status["state"], status["processes"]) == (False, "interrupted", [])
    assert (status["step"], status["durable_step"], status["incarnation"]) == (840, 800, 3)
    shown = procsv("status", str(tmp_path)).stdout
    assert "interrupted (not running)" in shown
    assert "840" in shown


def test_status_says_when_the_watchdog_was_killed_and_which_command_resumes_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    run = a_run(tmp_path, args=("--lr", "0.1"))
    os.utime(run.paths.run_json, (1.6e9, 1.6e9))
    shown = " ".join(procsv("status", str(tmp_path)).stdout.split())
    assert Naming(f"process {run.pid}", show_time(1.6e9)) == shown
    assert "procsv launch … train.py --lr 0.1" in shown
    assert json.loads(procsv("status", str(tmp_path), "--json").stdout)["seen_until"] == 1.6e9
    write_run(run.paths.run_json, msgspec.structs.replace(run, written_at=1.5e9), durable=False)
    assert read_status(find_run(str(tmp_path)))["seen_until"] == 1.5e9, "a copied file has a time of its own"


def test_status_gives_no_time_of_death_for_a_run_that_its_watchdog_has_ended(tmp_path: Path) -> None:
    a_run(tmp_path, state="stopped", ended_at=99.0, exit_code=75)
    assert "seen_until" not in json.loads(procsv("status", str(tmp_path), "--json").stdout)


def test_status_counts_what_the_services_saved_after_the_watchdog_was_killed(tmp_path: Path) -> None:
    a_run(tmp_path, memory_step=845)
    manifest = msgspec.json.encode(Manifest(1, 850, 1, 1, "r", "periodic", 0.0, {}))
    (tmp_path / "model.ckpt-850.manifest.json").write_bytes(manifest)
    (tmp_path / "model.ckpt-900.manifest.json").write_text("{")
    status = json.loads(procsv("status", str(tmp_path), "--json").stdout)

    assert (status["step"], status["durable_step"], status["memory_step"]) == (850, 850, -1)
    assert "step 850 is on disk" in procsv("stop", str(tmp_path)).stdout


def test_status_of_a_finished_run_shows_its_last_state(tmp_path: Path) -> None:
    a_run(tmp_path, state="done", ended_at=99.0, exit_code=0)
    status = json.loads(procsv("status", str(tmp_path), "--json").stdout)

    assert (status["running"], status["state"], status["exit_code"]) == (False, "done", 0)


def test_status_says_that_a_program_ended_before_its_first_step_with_nothing_saved(
    tmp_path: Path,
) -> None:
    last = LastExit(1, None, "exception", "ValueError: no data", -1)
    a_run(
        tmp_path, state="failed", step=-1, durable_step=-1, last_exit=last, protected=False, ended_at=20.0, exit_code=70
    )
    shown = " ".join(procsv("status", str(tmp_path)).stdout.split())
    assert "last exit exception: ValueError: no data, before" in shown
    assert "protected no: " in shown


def test_status_has_every_promised_field(tmp_path: Path) -> None:
    a_run(tmp_path)
    promised = {"state", "target", "logdir", "pid", "step", "durable_step", "memory_step", "incarnation", "restarts"}
    promised |= {"no_progress_count", "last_exit", "next_restart_in", "goodput", "launch_goodput", "processes"}

    assert promised <= set(json.loads(procsv("status", str(tmp_path), "--json").stdout))


def test_status_of_an_unresponsive_host_takes_less_than_a_second(tmp_path: Path) -> None:
    """For example a stopped watchdog: the files answer."""
    run = a_run(tmp_path)
    me = identify(os.getpid())  # alive, with a socket that nobody answers
    write_run(run.paths.run_json, msgspec.structs.replace(run, started=me.started), durable=False)
    import socket

    run.paths.run_dir.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(run.paths.control_socket))
        silent.listen()
        status = json.loads(procsv("status", str(tmp_path), "--json").stdout)
        took_s = []
        for _ in range(3):  # without the interpreter's start; take the fastest, because the machine may be busy
            begun_s = time.monotonic()
            read_status(find_run(str(tmp_path)))
            took_s.append(time.monotonic() - begun_s)
        assert min(took_s) < 1.0
    assert status["step"] == 840
    run.paths.control_socket.unlink()
    run.paths.run_dir.rmdir()


def test_status_of_an_unresponsive_watchdog_reads_the_heartbeat(tmp_path: Path) -> None:
    run = a_run(tmp_path, started=identify(os.getpid()).started, step=0)
    run.paths.run_dir.mkdir(parents=True)
    heartbeat = HeartbeatWriter(run.paths.heartbeat(TRAINER, 3))
    heartbeat.phase, heartbeat.step = Phase.STEP, 860
    heartbeat.beat(time.monotonic())
    status = json.loads(procsv("status", str(tmp_path), "--json").stdout)

    assert (status["running"], status["step"], status["durable_step"]) == (True, 860, 800)
    assert "860" in procsv("status", str(tmp_path)).stdout
    heartbeat.close()
    shutil.rmtree(run.paths.run_dir)


def test_stop_says_that_no_run_is_active(tmp_path: Path) -> None:
    a_run(tmp_path)
    done = procsv("stop", str(tmp_path))

    assert done.returncode == 0
    assert "no run" in done.stdout
    assert "step 800" in done.stdout


def elsewhere(run: RunFile, **place: str) -> Lease:
    there = msgspec.structs.replace(find_place(), **place)
    lease = Lease(run=run.run, place=there, pid=run.pid, started=run.started, what="procsv launch train.py")
    LeaseFile(run.paths).take_lease(lease)
    return lease


def test_a_run_on_another_machine_is_not_taken_for_killed(tmp_path: Path) -> None:
    run = a_run(tmp_path, boot="another boot")
    assert read_status(find_run(str(tmp_path)))["state"] == "interrupted"
    elsewhere(run, host="node17", boot=run.boot)
    status = read_status(find_run(str(tmp_path)))
    assert (status["state"], status["running"], status["elsewhere"]) == ("running", False, "node17")
    assert "running on node17, as of 20" in procsv("status", str(tmp_path)).stdout
    for command in ("stop", "restart", "preempt"):
        done = procsv(command, str(tmp_path))
        assert (done.returncode, f"process {run.pid} on node17" in done.stderr) == (1, True), command

    elsewhere(run, boot=run.boot)  # this machine, before a reboot
    assert read_status(find_run(str(tmp_path)))["state"] == "interrupted"


def test_a_run_in_another_container_is_alive_as_long_as_somebody_holds_its_logdir(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    elsewhere(run, host="container", pids="pid:[1]")
    lock = DirectoryLock(run.paths.home)
    assert lock.try_acquire()
    status = read_status(find_run(str(tmp_path)))
    assert (status["state"], status["elsewhere"]) == ("running", "container")

    lock.release_lock()
    status = read_status(find_run(str(tmp_path)))
    assert (status["state"], "elsewhere" in status) == ("interrupted", False)


@pytest.mark.fault
def test_stop_ends_a_launch_that_still_waits_for_its_logdir(tmp_path: Path) -> None:
    run = a_run(tmp_path / "logdir", state="stopped", ended_at=13.0)
    with waiting_launch(run) as process:
        assert process.stderr is not None
        assert "node17" in process.stderr.readline()
        # In a container the first process of each has the same pid.
        run = msgspec.structs.replace(run, pid=process.pid)
        write_run(run.paths.run_json, run, durable=False)
        done = procsv("stop", str(tmp_path / "logdir"))
        assert (done.returncode, f"process {process.pid}" in done.stdout) == (0, True)
        assert "not begun" in done.stdout
        assert process.wait(300.0) == 75
    assert run == read_run(run.paths.run_json)


@pytest.mark.fault
def test_an_interrupt_before_a_detached_run_has_begun_ends_its_watchdog_too(tmp_path: Path) -> None:
    run = a_run(tmp_path / "logdir", state="stopped", ended_at=13.0)
    log = run.paths.logs / "watchdog.1.log"
    with waiting_launch(run, "--detach") as process:
        until(lambda: log.exists() and "node17" in log.read_text(), partial(threading.Event().wait, 0.02))
        [watchdog] = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        assert process.wait(300.0) == 75
        assert not watchdog.is_running()
    assert run == read_run(run.paths.run_json)


@contextlib.contextmanager
def waiting_launch(run: RunFile, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Launch a run in the logdir of `run`, which another machine may still use, so that the launch waits."""
    there = ProcessSpace("node17", "another boot", "pid:[1]")
    LeaseFile(run.paths).take_lease(Lease(run="f" * 16, place=there, pid=4, started=1.0, what="procsv launch"))
    (run.paths.logdir.parent / "train.py").write_text("print('begun')\n")
    launch = [sys.executable, "-m", "procsv.cli.main", "launch", *options, "--logdir", "logdir", "train.py"]
    with subprocess.Popen(
        launch,
        cwd=run.paths.logdir.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_logs_shows_the_newest_attempt_of_a_role(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    run.paths.logs.mkdir()
    for number in (2, 10):
        run.paths.log(TRAINER, number).write_text(f"incarnation {number}\n")

    assert procsv("logs", str(tmp_path)).stdout == "incarnation 10\n"
    assert procsv("logs", str(tmp_path), "-f").stdout == "incarnation 10\n"
    done = procsv("logs", str(tmp_path), "--role", "trianer")
    assert done.returncode == 2
    assert "there are: trainer" in done.stderr


def test_a_moved_logdir_is_read_in_its_new_place(tmp_path: Path) -> None:
    run = a_run(tmp_path / "before", state="done", exit_code=0)
    run.paths.logs.mkdir()
    run.paths.log(TRAINER, 3).write_text("the last words\n")
    (tmp_path / "before").rename(tmp_path / "after")

    assert procsv("logs", str(tmp_path / "after")).stdout == "the last words\n"
    assert json.loads(procsv("status", str(tmp_path / "after"), "--json").stdout)["logdir"] == str(tmp_path / "after")


@pytest.mark.fault
def test_the_command_line_runs_a_whole_training(tmp_path: Path) -> None:
    """Launch, status, a refused second launch, stop. The launch keeps its pid through the exec."""
    program = tmp_path / "train.py"
    program.write_text("import sys, threading; print('begun', sys.argv[1:], flush=True); threading.Event().wait()\n")
    launch = [sys.executable, "-m", "procsv.cli.main", "launch", "--grace", "4s", "--logdir", "logdir"]
    launch += ["train.py", "--", "--steps", "3"]
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            launch,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        _use_it(tmp_path, process)
    finally:
        process.kill()
        process.wait()


@pytest.mark.fault
def test_a_launch_without_standard_streams_works(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print('trained', sys.stdin.read() == '')\n")
    argv = [sys.executable, "-m", "procsv.cli.main", "launch", "--standby", "off", "--logdir", "logdir", "train.py"]
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *argv],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    assert closed.returncode == 0
    assert (tmp_path / "logdir" / "procsv" / "logs" / "trainer.1.log").read_text() == "trained True\n"


def _use_it(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    log = tmp_path / "logdir" / "procsv" / "logs" / "trainer.1.log"
    deadline_s, pause = time.monotonic() + 300.0, threading.Event()
    while not (log.exists() and "begun" in log.read_text()):
        assert process.poll() is None, (tmp_path / "output").read_text()
        assert time.monotonic() < deadline_s
        pause.wait(0.02)

    status = json.loads(procsv("status", "logdir", "--json", cwd=tmp_path).stdout)
    while not status["processes"]:  # from the files: on a busy machine the watchdog may take longer than the second
        assert time.monotonic() < deadline_s
        status = json.loads(procsv("status", "logdir", "--json", cwd=tmp_path).stdout)
    assert (status["running"], status["pid"]) == (True, process.pid)
    assert [row["role"] for row in status["processes"]] == ["watchdog", "trainer", "checkpoint", "summary"]
    assert all(row["pid"] and row["rss"] > 0 for row in status["processes"])
    second = procsv("launch", "--logdir", "logdir", "train.py", cwd=tmp_path)
    assert second.returncode == 73
    for words in (f"process {process.pid}", "procsv status", "procsv stop", "since 20"):
        assert words in second.stderr
    shutil.copytree(tmp_path / "logdir", tmp_path / "copy")
    for command in ("status", "stop", "report"):  # in a copy, the other run is not its own
        done = procsv(command, "copy", cwd=tmp_path)
        assert "no run" in done.stdout or "interrupted" in done.stdout
    assert process.poll() is None
    stopped = procsv("stop", "logdir", cwd=tmp_path)
    assert stopped.returncode == 0
    assert "stopped" in stopped.stdout
    assert process.wait(300.0) == 130  # nothing is saved
    assert "begun ['--steps', '3']" in (tmp_path / "output").read_text()
    run = read_run(tmp_path / "logdir" / "procsv" / "run.json")
    assert run is not None
    assert (run.state, run.exit_code, run.args) == ("stopped", 130, ("--steps", "3"))
