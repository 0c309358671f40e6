"""A program without TensorFlow that starts its own watchdog has its run recorded and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import psutil
import pytest

from procsv.base.run.paths import find_paths
from procsv.base.run.run_file import read_run
from procsv.base.system.locks import DirectoryLock
from procsv.testing.run import Run, start
from tests.support.launched import NEWS_S_MAX, Launched, launched, procsv, remove_live
from tests.support.programs import ignores, until

pytestmark = pytest.mark.fault

# Obeys one command a line: words that start or end a run, or end the program in some way.
PROGRAM = """
import ctypes, os, sys
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.runtime import observer
from procsv.training.runtime.context import Runtime

logdir, orders = sys.argv[1:]
observer.SETTINGS = LaunchSettings(hang_timeout_s=1.0)
watchdog = observer.Observer(logdir, may_save=True)
watchdog.warm_up()
runtime = Runtime(watchdog.paths, watchdog.peers, observer=watchdog)
runtime.stops.add_listener(lambda reason: print("asked to stop:", reason, flush=True))

def begin():
    runtime.acquire_run()
    runtime.connection.start_link()
    runtime.heartbeat.enter_phase(Phase.STEP)

def end(error=None):
    runtime.record_failure(error)
    runtime.release_run()

for line in open(orders):
    word, _, rest = line.strip().partition(" ")
    match word:
        case "begin":
            begin()
        case "step":
            runtime.heartbeat.write_step(int(rest))
        case "end":
            end()
        case "fail":
            try:
                raise ValueError(rest)
            except ValueError as error:
                end(error)
                raise
        case "interrupt":
            end(KeyboardInterrupt())
        case "exit":
            sys.exit(int(rest))
        case "fork":
            child = os.fork()
            if child == 0 and rest == "and end":
                end()
            if child == 0 and rest.startswith("and"):
                sys.exit(0)
            if rest.startswith("and"):
                os.waitpid(child, 0)
            elif child == 0:
                for line in open(rest):
                    pass
                os._exit(0)
        case "crash":
            ctypes.string_at(0)
    print("done:", line.strip(), flush=True)
"""


@dataclass(slots=True)
class Observed:
    """The program and the pipe for its commands."""

    run: Launched
    orders: TextIO

    def tell(self, line: str) -> None:
        """Send a command and wait until it is done."""
        count = self.run.said().count(f"done: {line}\n")
        self.order(line)
        self.run.wait_for(line, lambda: self.run.said().count(f"done: {line}\n") > count)

    def order(self, line: str) -> None:
        self.orders.write(f"{line}\n")
        self.orders.flush()

    def wait_gone(self) -> None:
        """Wait until its watchdog has exited after the program's death."""
        run_dir, pause = find_paths(self.run.logdir).run_dir, threading.Event()
        until(lambda: not run_dir.exists(), lambda: pause.wait(0.02), NEWS_S_MAX)

    @property
    def watchdog(self) -> int:
        run = read_run(find_paths(self.run.logdir).run_json)
        assert run is not None
        return run.pid


@contextlib.contextmanager
def observed(tmp_path: Path, name: str = "orders") -> Iterator[Observed]:
    program, orders = tmp_path / "train.py", tmp_path / name
    program.write_text(PROGRAM)
    os.mkfifo(orders)
    with (
        launched(tmp_path / "logdir", str(orders), launcher=(sys.executable, str(program))) as run,
        orders.open("w") as f,
    ):
        yield Observed(run, f)


def test_a_program_without_a_session_leaves_nothing_and_writes_nothing(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        program.order("exit 0")

        assert program.run.wait_end() == 0
    assert not (tmp_path / "logdir").exists()


def test_a_session_that_ends_completes_its_run_and_the_next_one_is_a_new_run(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        for number in (1, 2):
            program.tell("begin")
            assert program.run.status()["incarnation"] == number
            program.tell(f"step {number}")
            program.tell("end")
            assert len(program.run.events("run_completed")) == number
            assert not psutil.Process(program.run.process.pid).children()

    status = json.loads(procsv("status", str(tmp_path / "logdir"), "--json").stdout)
    assert (status["state"], status["exit_code"], status["step"]) == ("done", 0, 2)


def test_status_is_the_same_as_a_launchs(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        program.tell("begin")
        program.tell("step 7")
        program.run.wait_step(7)
        status = program.run.status()

        assert (status["running"], status["target"]) == (True, "train.py")
        rows = {row["role"]: row["pid"] for row in status["processes"]}
        assert set(rows) == {"watchdog", "trainer", "checkpoint", "summary"}
        assert rows["trainer"] == program.run.process.pid
        program.tell("end")


def test_a_killed_program_is_recorded_with_an_unknown_cause_and_its_services_end(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        program.tell("begin")
        program.tell("step 7")
        program.run.process.kill()
        program.wait_gone()
        exited = program.run.events("exited", "trainer")[0]

    assert (exited["cause"], exited["code"], exited["signal"], exited["step"]) == ("unknown", None, None, 7)
    status = json.loads(procsv("status", str(tmp_path / "logdir"), "--json").stdout)
    assert (status["running"], status["state"], status["last_exit"]["cause"]) == (False, "failed", "unknown")
    assert "unknown exit status" in (tmp_path / "logdir" / "procsv" / "crashes" / "1.txt").read_text()
    assert "unknown exit status, at step 7" in program.run.said()


def test_a_fork_that_leaves_its_session_ends_nothing(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        program.tell("begin")
        program.tell("fork and end")
        program.tell("step 7")
        program.run.wait_step(7)
        assert not program.run.events("run_completed")
        program.tell("end")
        assert program.run.status()["step"] == 7


def test_row_46_a_fork_that_outlives_the_killed_program_does_not_hold_the_run(tmp_path: Path) -> None:
    other = tmp_path / "other"
    os.mkfifo(other)
    with observed(tmp_path) as program:
        program.tell("begin")
        program.tell(f"fork {other}")
        fork = next(
            p for p in psutil.Process(program.run.process.pid).children() if "train.py" in " ".join(p.cmdline())
        )
        program.run.process.kill()
        program.wait_gone()

        assert fork.is_running()
        assert not program.run.events("exited", "trainer")[0]["signal"]
        with other.open("w"):
            pass
        psutil.wait_procs([fork], timeout=300)


def test_row_53_a_frozen_program_that_only_the_logdir_knows_is_never_joined_or_killed_by_another(
    tmp_path: Path,
) -> None:
    with observed(tmp_path) as program, tempfile.TemporaryDirectory(prefix="psv-") as elsewhere:
        program.tell("begin")
        pid, paths = program.run.process.pid, find_paths(tmp_path / "logdir")
        watchdog = psutil.Process(program.watchdog)
        services = watchdog.children()
        writers = {pid, watchdog.pid, *(service.pid for service in services)}
        until(lambda: set(DirectoryLock(paths.home).holders()) == writers, lambda: None, NEWS_S_MAX)
        try:
            program.run.process.send_signal(signal.SIGSTOP)
            for process in (watchdog, *services):
                process.kill()
            psutil.wait_procs(services, timeout=300)
            until(lambda: set(DirectoryLock(paths.home).holders()) == {pid}, lambda: None, NEWS_S_MAX)
            remove_live(paths.run_dir)
            paths.run_json.unlink()
            refused = procsv(
                "launch",
                "--logdir",
                str(tmp_path / "logdir"),
                "--standby",
                "off",
                "json.tool",
                XDG_RUNTIME_DIR=elsewhere,
            )
        finally:
            program.run.process.send_signal(signal.SIGCONT)
        assert refused.returncode == 73
        assert f": process {pid} (python train.py" in refused.stderr
        program.run.process.kill()
        program.run.process.wait()
        remove_live(paths.shm_dir)
    with observed(tmp_path, "again") as program:
        program.tell("begin")
        program.order("end")
        program.order("exit 0")
        assert program.run.wait_end() == 0


def test_an_interpreter_crash_is_reported_with_its_stacks(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        program.tell("begin")
        program.order("crash")
        assert program.run.wait_end() == -signal.SIGSEGV
        program.wait_gone()
        exited = program.run.events("exited", "trainer")[0]

    assert exited["cause"] == "crashed"
    assert "train.py" in exited["evidence"]


def test_an_exception_is_in_the_crash_report_and_once_on_the_terminal(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        program.tell("begin")
        program.tell("step 7")
        program.order("fail no such thing")

        assert program.run.wait_end() == 1
        assert program.run.said().count("ValueError: no such thing") == 1
        exited = program.run.events("exited", "trainer")[0]
    assert (exited["cause"], exited["evidence"], exited["code"]) == ("exception", "ValueError: no such thing", 1)
    assert "ValueError: no such thing" in (tmp_path / "logdir" / "procsv" / "crashes" / "1.txt").read_text()


def test_a_program_that_exits_with_its_session_open_completes_it(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        program.tell("begin")
        program.order("exit 0")

        assert program.run.wait_end() == 0
        assert program.run.events("run_completed")


def test_a_fork_that_exits_does_not_end_the_run_of_its_parent(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        program.tell("begin")
        program.tell("fork and exit")
        program.tell("step 3")

        assert not program.run.events("exited", "trainer")
        program.tell("end")
    assert program.run.events("run_completed")[0]["step"] == 3


def test_an_interrupt_stops_the_run(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        program.tell("begin")
        program.tell("interrupt")

        assert program.run.events("stopped")
    status = json.loads(procsv("status", str(tmp_path / "logdir"), "--json").stdout)
    assert (status["state"], status["exit_code"]) == ("stopped", 75)


def test_a_hang_is_reported_and_ends_when_the_program_continues(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        program.tell("begin")
        program.tell("step 1")
        hang = wait_at(program.run, "hang_detected", step=1)

        assert hang["phase"] == "step"
        assert program.run.status()["state"] == "hung"
        program.run.wait_for("the terminal", lambda: "not end it" in program.run.said())
        program.tell("step 2")
        wait_at(program.run, "hang_over", step=2)
        program.tell("end")


def wait_at(run: Launched, event: str, step: int) -> dict[str, Any]:
    """Wait for the first `event` at that step. A busy machine may have had one before its first step."""
    return run.wait_for(f"{event} at {step}", lambda: [e for e in run.events(event, "trainer") if e["step"] == step])[0]


def test_a_stop_asks_the_program_and_it_ends_by_itself(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        program.tell("begin")
        program.tell("step 7")
        stop = launched_stop(program)
        program.run.wait_for("the request", lambda: "asked to stop: final" in program.run.said())
        program.tell("end")

        assert program.run.process.poll() is None
        assert stop.wait_for("its end", lambda: stop.process.poll() is not None)
        assert stop.process.returncode == 0
    assert program.run.events("stopped")[0]["source"] == "procsv stop"


def launched_stop(program: Observed) -> Run:
    return start(program.run.logdir, (), {}, launcher=(sys.executable, "-m", "procsv", "stop"))


def test_a_stop_now_kills_the_program_and_no_process_of_ours(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        program.tell("begin")
        program.tell("step 7")
        done = procsv("stop", "--now", str(program.run.logdir))

        assert program.run.wait_end() == -signal.SIGKILL
        assert done.returncode == 0, done.stdout + done.stderr
    assert program.run.events("stopped")[0]["step"] == 7


def test_a_restart_is_refused_and_the_program_trains_on(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        program.tell("begin")
        done = procsv("restart", str(program.run.logdir))

        assert done.returncode == 1
        assert "not started by" in done.stderr
        assert program.run.status()["state"] not in ("stopping", "recycling")
        program.tell("end")


def test_a_second_program_is_refused_naming_the_holder_of_the_logdir(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        program.tell("begin")
        again = tmp_path / "again"
        os.mkfifo(again)
        command = (sys.executable, str(tmp_path / "train.py"))
        second = launched(program.run.logdir, str(again), launcher=command)
        with second as run, again.open("w") as orders:
            orders.write("begin\n")
            orders.flush()
            assert run.wait_end() == 1
        assert f"{program.run.logdir} is in use: " in (program.run.said())
        program.tell("end")


def test_a_program_whose_watchdog_is_killed_goes_on_and_leaves_nothing(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        program.tell("begin")
        program.tell("step 7")
        os.kill(program.watchdog, signal.SIGKILL)
        program.run.wait_for("the news", lambda: "training goes on" in program.run.said())
        refused = procsv(
            "launch", "--grace", "1s", "--logdir", str(program.run.logdir), str(tmp_path / "train.py"), timeout_s=300.0
        )
        program.tell("step 8")
        program.tell("end")

        assert refused.returncode == 73
        assert program.run.said().count("training goes on") == 1
        program.wait_gone()
        program.tell("begin")
        assert program.run.status()["incarnation"] == 2
        program.tell("end")


def processes(run: Launched) -> dict[str, int]:
    """Return the processes by role, or none if the watchdog of a busy machine does not answer in time."""
    return {row["role"]: row["pid"] for row in run.status()["processes"]}


def states(run: Launched) -> list[str]:
    return [row["state"] for row in run.status()["processes"]]


def test_row_50_a_removed_runtime_directory_is_recreated_for_a_program_without_a_launch(tmp_path: Path) -> None:
    with observed(tmp_path) as program:
        program.tell("begin")
        program.tell("step 7")
        # Their sockets are in the directory by now.
        program.run.wait_for("the services", lambda: states(program.run).count("serving") == 2)
        rows = program.run.wait_for("the processes", partial(processes, program.run))
        run_dir = find_paths(program.run.logdir).run_dir
        remove_live(run_dir)
        program.run.wait_event("ground_restored")
        program.tell("step 8")
        program.run.wait_for("the new heartbeat", lambda: program.run.status()["step"] == 8)
        assert program.run.wait_for("the processes", partial(processes, program.run)) == rows
        program.tell("end")
        assert program.run.events("run_completed")[0]["step"] == 8
        assert not run_dir.exists()


@pytest.mark.parametrize("who", ["watchdog", "all"])
def test_a_sigterm_to_the_watchdog_asks_the_program_and_one_to_all_ends_it_as_without_procsv(
    tmp_path: Path, who: str
) -> None:
    with observed(tmp_path) as program:
        program.tell("begin")
        program.tell("step 7")
        watchdog = psutil.Process(program.watchdog)
        services = watchdog.children()
        assert len(services) == 2
        for service in services:
            program.run.wait_for("a service to ignore it", partial(ignores, service.pid, signal.SIGTERM))
        for process in (watchdog, *services, *([program.run.process] if who == "all" else ())):
            process.send_signal(signal.SIGTERM)
        if who == "watchdog":
            program.run.wait_for("the request", lambda: "asked to stop: preempt" in program.run.said())
            assert all(service.is_running() for service in services)
            program.tell("end")
            program.order("exit 0")
            assert program.run.wait_end() == 0
        else:
            assert program.run.wait_end() == -signal.SIGTERM
        program.wait_gone()
    assert program.run.events("stopped")[0]["step"] == 7
