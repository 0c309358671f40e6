"""The watchdog with real processes: a real trainer bootstrap and summary service, and a stand-in
checkpoint service.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from procsv.base.identity import COMMAND_LINE, TRAINER
from procsv.base.run.run_file import RunFile, read_run
from procsv.base.system.system_clock import SystemClock
from procsv.cli.directory import find_run
from procsv.cli.status import read_status
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.launch_settings import Range
from procsv.ipc.messaging.zmq_transport import Client, Waiter, new_context
from tests.support.holders import holders
from tests.support.journal import read_journal
from tests.support.launched import remove_live, settings_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.fault

ROOT = Path(__file__).parents[2]
LAUNCH = Path(__file__).with_name("stand_ins") / "launch.py"
NEWS_S_MAX = 300.0
WAKES_PER_S_MAX = 40  # two ticks a second plus news; a past deadline that changes nothing would make it 200

# An interrupt just before an endless wait would go unheard.
IDLE = """
import time
print('begun', flush=True)
while True:
    time.sleep(0.05)
"""
DEAF = """
import time
print('begun', flush=True)
while True:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        pass
"""


class Run:
    """One run under its own watchdog."""

    def __init__(self, process: subprocess.Popen[str], logdir: Path, output: Path) -> None:
        self.process, self.logdir, self._output = process, logdir, output

    def journal(self, event: str, role: str = "") -> list[dict[str, Any]]:
        lines = read_journal(self.logdir / "procsv" / "journal.jsonl")
        return [line for line in lines if line["event"] == event and role in ("", line["role"])]

    def pid(self, role: str) -> int:
        return int(self.journal("spawned", role)[-1]["pid"])

    def has_another(self, role: str, pid: int) -> bool:
        return self.pid(role) != pid

    def said(self) -> str:
        return self._output.read_text()

    def log(self, incarnation: int = 1) -> str:
        path = self.logdir / "procsv" / "logs" / f"trainer.{incarnation}.log"
        return path.read_text() if path.exists() else ""

    def report(self, incarnation: int = 1) -> str:
        return (self.logdir / "procsv" / "crashes" / f"{incarnation}.txt").read_text()

    def file(self) -> RunFile:
        run = read_run(self.logdir / "procsv" / "run.json")
        assert run is not None
        return run

    def until(self, what: str, holds: Callable[[], Any]) -> None:
        deadline_s, pause = time.monotonic() + NEWS_S_MAX, threading.Event()
        while not holds():
            assert self.process.poll() is None, f"ended before {what}: {self.said()}"
            assert time.monotonic() < deadline_s, f"no {what}: {self.said()}"
            pause.wait(0.02)

    def begun(self, incarnation: int = 1) -> Run:
        """Wait for the journal, too: the program prints before its watchdog has recorded its start."""
        self.until("begun", lambda: "begun" in self.log(incarnation))
        self.until("the note of its start", lambda: self.has_noted(incarnation))
        return self

    def has_noted(self, incarnation: int) -> bool:
        return any(entry["incarnation"] == incarnation for entry in self.journal("spawned", "trainer"))

    def end(self) -> int:
        return self.process.wait(NEWS_S_MAX)


@contextlib.contextmanager
def launched(tmp_path: Path, source: str, **settings: Any) -> Iterator[Run]:
    program, logdir, output = tmp_path / "train.py", tmp_path / "logdir", tmp_path / "output"
    program.write_text(source)
    settings.setdefault("grace_s", 60.0)  # the idle programs need none of it
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **settings.pop("env", {})}
    args = settings.pop("args", ())
    with output.open("a") as stream:
        process = subprocess.Popen(
            [sys.executable, str(LAUNCH), str(logdir), settings_text(**settings), str(program), *args],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
        )
    run = Run(process, logdir, output)
    try:
        yield run
    finally:
        if process.poll() is None:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
            process.wait()


def test_a_successful_program_ends_the_run_with_0_and_leaves_nothing(tmp_path: Path) -> None:
    source = "import os, sys; print(sys.argv[1:], os.environ['PROCSV_ROLE'], os.environ['PROCSV_INCARNATION'])"
    with launched(tmp_path, source) as run:
        assert run.end() == 0
        assert "[] trainer 1" in run.said()
        file = run.file()
        assert (file.state, file.exit_code, file.incarnation) == ("done", 0, 1)
        assert not Path(file.run_dir).exists()
        assert not Path(file.shm_dir).exists()
        assert len(run.journal("run_completed")) == 1
        assert re.search(r"^procsv_run_active\{.*\} 0\.0$", (run.logdir / "procsv" / "metrics.prom").read_text(), re.M)


def test_an_exception_before_the_first_step_is_retried_once_and_explained(tmp_path: Path) -> None:
    with launched(tmp_path, "raise RuntimeError('boom')", backoff=Range(0.05, 60.0)) as run:
        assert run.end() == 70
        said = run.said()
        assert "gave up: 2 failures before" in said
        assert "boom" not in said.rpartition("gave up")[2], "it is right above, in the program's own output"
        assert said.count("Traceback") == 2
        assert said.count("ended with RuntimeError: boom, before ") == 2
        assert len(run.journal("spawned", "trainer")) == 2
        crash = json.loads((run.logdir / "procsv" / "crashes" / "2.json").read_text())
        assert (crash["cause"], crash["evidence"]) == ("exception", "RuntimeError: boom")
        assert "boom" in (run.logdir / "procsv" / "crashes" / "2.txt").read_text()
        status = read_status(find_run(str(run.logdir)))
        assert status["gave_up"] == run.journal("gave_up")[0]["why"]
        assert status["crash_report"] == str(run.logdir / "procsv" / "crashes" / "2.txt")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError before "),
        ("import sys; sys.exit(78)", "exit code 78"),
        ("import sys; sys.exit(2)", "exit code 2 "),
    ],
)
def test_row_05_a_permanent_error_is_tried_once(tmp_path: Path, source: str, why: str) -> None:
    with launched(tmp_path, source) as run:
        assert run.end() == 70
        assert why in run.journal("gave_up")[0]["why"]
        assert len(run.journal("spawned", "trainer")) == 1


def test_a_killed_trainer_is_noticed_at_once_and_restarted(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE, backoff=Range(0.05, 60.0)) as run:
        run.begun()
        others = [run.pid("checkpoint"), run.pid("summary")]
        noticed_s = []
        for number in range(3):
            killed_at = time.time()
            os.kill(run.pid("trainer"), signal.SIGKILL)
            run.begun(number + 2)
            ended = run.journal("exited", "trainer")[number]
            assert (ended["cause"], ended["signal"], ended["code"]) == ("killed", "SIGKILL", None)
            assert ended["evidence"] == "SIGKILL, sender unknown"
            noticed_s.append(ended["time"] - killed_at)
        assert min(noticed_s) < 0.5  # it does not wait for a tick; 50 ms on an idle machine
        assert others == [run.pid("checkpoint"), run.pid("summary")]
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 130


def test_row_10_the_trainer_holds_the_writer_s_lock_and_the_watchdog_does_not(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE) as run:
        for number in (1, 2):
            run.begun(number)
            assert holders(run.file().paths.writer_lock(TRAINER), run.process.pid) == {run.pid("trainer")}
            if number == 1:
                psutil.Process(run.pid("trainer")).kill()
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 130


def test_row_14_a_grandchild_in_its_own_session_is_ended_before_the_next_trainer_starts(tmp_path: Path) -> None:
    source = (
        "import os, subprocess, sys, signal\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], start_new_session=True)\n"
        "print('orphan', child.pid, flush=True)\n"
        f"{IDLE}"
    )
    with launched(tmp_path, source, backoff=Range(0.05, 60.0)) as run:
        run.begun()
        orphan = int(re.findall(r"orphan (\d+)", run.log())[0])
        os.kill(run.pid("trainer"), signal.SIGKILL)
        run.begun(2)
        assert not psutil.pid_exists(orphan)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 130


def test_a_killed_service_comes_back_and_nobody_else_notices(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE) as run:
        run.begun()
        trainer = run.pid("trainer")
        for role in ("checkpoint", "summary"):
            before = run.pid(role)
            os.kill(before, signal.SIGKILL)
            run.until(f"a new {role}", partial(run.has_another, role, before))
        assert trainer == run.pid("trainer")
        restarted = {"checkpoint", "summary"}  # recorded after the start
        run.until("word of both", lambda: {e["role"] for e in run.journal("service_restarted")} == restarted)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 130


@pytest.mark.long
def test_a_checkpoint_service_that_never_starts_fails_the_run(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE, grace_s=3.0, env={"STAND_IN_CHECKPOINT": "die"}) as run:
        assert run.end() == 70
        assert "the checkpoint service failed 5 times" in run.said()
        assert len(run.journal("spawned", "checkpoint")) == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_row_27_a_signal_stops_the_run_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with launched(tmp_path, IDLE) as run:
        run.begun()
        run.process.send_signal(number)
        assert run.end() == 130
        assert run.journal("stopped")[0]["source"] == number.name
        assert run.file().state == "stopped"
        assert run.journal("exited", "trainer")[0]["cause"] == "stopped"


def test_row_27_a_second_interrupt_does_not_wait_for_the_program(tmp_path: Path) -> None:
    with launched(tmp_path, DEAF, grace_s=36_000.0) as run:  # a test that waits for the grace does not end
        run.begun()
        run.process.send_signal(signal.SIGINT)
        run.until("the stopping", lambda: run.file().state == "stopping")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 70  # nothing is saved
        assert "sent by procsv" in run.journal("exited", "trainer")[0]["evidence"]


def test_row_08_a_trainer_that_ignores_messages_is_killed_when_its_share_of_the_grace_period_is_over(
    tmp_path: Path,
) -> None:
    # The sum never releases the interpreter: no signal handler and no other thread of the trainer
    # runs.
    source = "import itertools\nprint('begun', flush=True)\nsum(itertools.repeat(0))"
    with launched(tmp_path, source, grace_s=2.5) as run:
        run.begun().process.send_signal(signal.SIGTERM)
        assert run.end() == 70  # nothing is saved
        assert run.journal("exited", "trainer")[0]["signal"] == "SIGKILL"


def test_a_state_that_could_not_be_saved_ends_the_run_with_70_and_a_message(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE, env={"STAND_IN_CHECKPOINT": "unsaved"}) as run:
        run.begun()
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 70
        assert "disk is full" in run.said()


def test_the_watchdog_is_small_and_idle(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE) as run:
        run.begun()
        watchdog = psutil.Process(run.process.pid)
        assert watchdog.memory_info().rss < 40 * 2**20
        began_s = time.monotonic()
        before, used = watchdog.num_ctx_switches().voluntary, sum(watchdog.cpu_times()[:2])
        threading.Event().wait(4.0)  # a measurement, over at least this time
        woken = watchdog.num_ctx_switches().voluntary - before
        took_s = sum(watchdog.cpu_times()[:2]) - used
        passed_s = time.monotonic() - began_s
        assert woken < passed_s * WAKES_PER_S_MAX, "each turn of its loop ends in a wait for news, or for the next tick"
        assert took_s < passed_s / 2, "a loop that does not wait has a core for itself"
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 130


def test_row_31_a_deleted_control_socket_is_recreated(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE) as run:
        run.begun()
        paths = run.file().paths
        paths.control_socket.unlink()
        command = [sys.executable, "-m", "procsv.cli.main", "status", str(run.logdir), "--json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
        assert json.loads(done.stdout)["running"]  # from the file in the meantime
        run.until("the new socket", paths.control_socket.exists)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 130


def test_row_32_garbage_at_the_control_socket_is_survived(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE) as run:
        run.begun()
        context = new_context()
        client = Client(context, run.file().paths.control_socket, Address("", COMMAND_LINE, 1), SystemClock())
        waiter = Waiter()
        waiter.register(client)
        while not client.resend_due():
            assert waiter.wait(NEWS_S_MAX)
        for garbage in (b"", b"\xff" * 1000, b"\x90", b"{}"):
            client.socket.send_multipart([garbage], flags=0)
        client.close()
        context.term()
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 130


# -- the run's files ------------------------------------------------------------------------------------------------
def ask_status(run: Run) -> dict[str, Any]:
    """Run `procsv status --json` in its own process."""
    command = [sys.executable, "-m", "procsv.cli.main", "status", str(run.logdir), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def has_processes(run: Run, pids: dict[str, int]) -> bool:
    """Return whether the watchdog answers with processes; a busy one may need more than `status`'s second."""
    return {row["role"]: row["pid"] for row in ask_status(run)["processes"] if row["role"] in pids} == pids


def serve(run: Run) -> None:
    """Wait until both services serve."""

    def states() -> list[str]:
        return [row["state"] for row in ask_status(run)["processes"] if row["role"] in ("checkpoint", "summary")]

    run.until("both services", lambda: states() == ["serving"] * 2)


@pytest.mark.long
def test_row_50_a_removed_runtime_directory_is_recreated_with_everything_in_it(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE, backoff=Range(0.05, 1.0), grace_s=12.0) as run:
        serve(run.begun())
        paths, pids = run.file().paths, {role: run.pid(role) for role in ("trainer", "checkpoint", "summary")}
        names = {path.name for path in paths.run_dir.iterdir() if not path.name.startswith("writer")}
        remove_live(paths.run_dir)
        run.until("the loss in the journal", lambda: run.journal("ground_lost"))
        run.until("the directory in the journal", lambda: run.journal("ground_restored"))
        assert [(e["what"], e["path"]) for e in run.journal("ground_lost")] == [
            ("runtime directory", str(paths.run_dir))
        ]
        run.until("what was in it", lambda: names <= {path.name for path in paths.run_dir.iterdir()})
        assert stat.S_IMODE(paths.run_dir.stat().st_mode) == 0o700
        run.until("the same processes", lambda: has_processes(run, pids))
        run.until("no more loss in run.json", lambda: run.file().ground_error is None)
        assert run.said().count(str(paths.run_dir)) == 2, "its loss and its return, each said once"

        os.kill(run.pid("trainer"), signal.SIGKILL)
        run.begun(2).process.send_signal(signal.SIGTERM)
        assert run.end() == 130
        assert not paths.run_dir.exists()


@pytest.mark.long
def test_row_51_sockets_and_locks_removed_one_by_one_come_back_and_the_next_crash_is_recovered(
    tmp_path: Path,
) -> None:
    with launched(tmp_path, IDLE, backoff=Range(0.05, 1.0), grace_s=12.0) as run:
        serve(run.begun())
        paths, pids = run.file().paths, {role: run.pid(role) for role in ("trainer", "checkpoint", "summary")}
        swept = [path for path in paths.run_dir.iterdir() if not path.name.startswith("writer")]
        is_told = {str(path) for path in swept if path.suffix in (".sock", ".lock")}
        assert len(is_told) == 6, "a socket and a lock of the watchdog's and of each service's"
        for path in swept:
            path.unlink()
        run.until("news of each", lambda: {e["path"] for e in run.journal("ground_restored")} == is_told)
        assert {e["path"] for e in run.journal("ground_lost")} == is_told
        run.until("the other files", lambda: all(path.exists() for path in swept))
        run.until("the same processes", lambda: has_processes(run, pids))
        run.until("no more loss in run.json", lambda: run.file().ground_error is None)

        for role in ("checkpoint", "trainer"):
            os.kill(pids[role], signal.SIGKILL)
        run.until("another service", partial(run.has_another, "checkpoint", pids["checkpoint"]))
        run.begun(2).process.send_signal(signal.SIGTERM)
        assert run.end() == 130
        assert not paths.run_dir.exists()


def test_row_31_a_file_in_place_of_the_control_socket_is_reported_and_stays(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE) as run:
        run.begun()
        socket = run.file().paths.control_socket
        socket.unlink()
        socket.write_text("precious")
        run.until("word of it", lambda: f"{socket} exists" in run.said())
        run.until("the error in run.json", lambda: f"{socket} exists" in (run.file().ground_error or ""))
        assert socket.read_text() == "precious"
        socket.unlink()
        run.until("the new socket", socket.is_socket)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 130


@pytest.mark.long
def test_row_35_a_logdir_that_was_removed_and_recreated_gets_the_rest_of_the_run(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE, grace_s=12.0) as run:
        run.begun()
        remove_live(run.logdir)
        run.until("word of it", lambda: "cannot write to" in run.said())
        run.logdir.mkdir()
        run.until("the journal", lambda: run.journal("ground_restored"))
        [restored] = run.journal("ground_restored")
        assert (restored["what"], restored["path"]) == ("logdir", str(run.logdir))
        run.until("run.json", (run.logdir / "procsv" / "run.json").exists)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 130
        assert run.file().exit_code == 130


@pytest.mark.parametrize(
    "source",
    ["int(input())", "import sys\nint(sys.stdin.readline())", "import sys\nsys.exit(3 if not sys.stdin.read() else 0)"],
)
def test_the_crash_report_of_a_program_that_reads_standard_input_says_so(tmp_path: Path, source: str) -> None:
    with launched(tmp_path, source, early_failures=1) as run:
        run.end()
    assert "standard input, " in run.report()


def test_a_program_without_a_session_learns_so_at_its_first_kill(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE) as run:
        os.kill(run.begun().pid("trainer"), signal.SIGKILL)
        run.begun(2)
        run.until("the advice", lambda: "session that procsv" in run.said())
        os.kill(run.pid("trainer"), signal.SIGKILL)
        run.begun(3)
        assert run.said().count("session that procsv") == 1
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 130
