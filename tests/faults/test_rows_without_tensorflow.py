"""Fault matrix rows about the watchdog and trainer as processes: the watchdog, bootstrap and
summary service are real.

The programs need no TensorFlow and a stand-in replaces the checkpoint service, so a start takes a
third of a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from procsv.faults.plan import Plan
from procsv.faults.plan_parser import parse_fault
from procsv.ipc.messaging.launch_settings import Range
from tests.support.launched import NOT_SAVED, Launched, launched, settings_text

pytestmark = pytest.mark.fault

LAUNCHER = [sys.executable, str(Path(__file__).parents[1] / "watchdog" / "stand_ins" / "launch.py")]

TRAINS = """
import os, signal, sys, threading
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.runtime.context import current

incarnation = int(os.environ["PROCSV_INCARNATION"])


def train(step=10):
    run = current()
    run.heartbeat.enter_phase(Phase.STEP)
    run.heartbeat.reach_step(step)
    run.heartbeat.extend_limit(0.0)  # the heartbeat says it now
    run.report_first_step(FirstStepDone(0, "fresh", "", 1, run.clock.monotonic()))
    print("trains", incarnation, flush=True)
    return run


def until_stopped(run):
    stopped = threading.Event()
    run.stops.add_listener(lambda reason: stopped.set())
    stopped.wait()


"""
PAUSES = "import signal\nprint('begun', flush=True)\nsignal.pause()\n"


@contextlib.contextmanager
def running(tmp_path: Path, source: str, **settings: Any) -> Iterator[Launched]:
    env = settings.pop("env", {})
    (tmp_path / "train.py").write_text(source)
    told = settings_text(**{"grace_s": 4.0, "backoff": Range(0.05, 0.1), **settings})
    program = str(tmp_path / "train.py")
    with launched(tmp_path / "logdir", told, program, launcher=LAUNCHER, **env) as run:
        yield run


def trainers(run: Launched, event: str) -> list[dict[str, Any]]:
    return [entry for entry in run.events(event) if entry["role"] == "trainer"]


def wait_printed(run: Launched, words: str, incarnation: int = 1) -> None:
    """Its watchdog has noted its start by then, too, which may come after its first words."""
    log = run.logdir / "procsv" / "logs" / f"trainer.{incarnation}.log"
    run.wait_for(words, lambda: log.exists() and words in log.read_text())
    run.wait_for("its start", lambda: any(entry["incarnation"] == incarnation for entry in trainers(run, "spawned")))


# It crashes once the watchdog knows of its first step: before that, nobody can say that it had a session.
CRASHES = """
import ctypes, json, os, signal, time

def reads_nowhere(): ctypes.string_at(0)
def gives_up(): os.abort()
def loses_its_memory(): os.kill(os.getpid(), signal.SIGBUS)

crashes = [reads_nowhere, gives_up, loses_its_memory]

def is_ready(entry): return (entry["event"], entry["incarnation"]) == ("ready", incarnation)

if incarnation <= len(crashes):
    journal = train().connection.paths.journal
    while not any(map(is_ready, map(json.loads, journal.read_text().splitlines()))):
        time.sleep(0.01)
    print("the last words", incarnation, flush=True)
    crashes[incarnation - 1]()
"""


def test_row_02_a_native_crash_is_reported_with_its_signal_stacks_and_last_lines(tmp_path: Path) -> None:
    with running(tmp_path, TRAINS + CRASHES) as run:
        assert run.wait_end() == 0
    names = ("reads_nowhere", "gives_up", "loses_its_memory")
    signals = ("SIGSEGV", "SIGABRT", "SIGBUS")
    for number, (name, told) in enumerate(zip(names, signals, strict=True), start=1):
        ended = trainers(run, "exited")[number - 1]
        assert (ended["cause"], ended["signal"], ended["code"], ended["step"]) == ("crashed", told, None, 10)
        assert f"{told} in {name} (" in ended["evidence"]
        report = json.loads((run.logdir / "procsv" / "crashes" / f"{number}.json").read_text())
        assert f"in {name}" in report["stacks"]
        assert f"the last words {number}" in report["last_lines"]
        assert (report["step"], report["lost_steps"], report["resume_step"]) == (10, 10, -1)
        text = (run.logdir / "procsv" / "crashes" / f"{number}.txt").read_text().splitlines()
        assert text[0].startswith(f"trainer {number} (pid {ended['pid']}) crashed with {told} in {name} (")
        assert "resumes    from the beginning" in text


def test_row_03_the_same_exception_at_the_same_step_is_given_up_after_three(tmp_path: Path) -> None:
    with running(tmp_path, TRAINS + "train(840)\nraise ValueError('boom')\n") as run:
        assert run.wait_end() == 70
    assert "deterministic: ValueError at step 840, 3 times" in run.events("gave_up")[0]["why"]
    assert len(trainers(run, "spawned")) == 3
    report = json.loads((run.logdir / "procsv" / "crashes" / "3.json").read_text())
    assert report["exception"] == "ValueError"
    assert "raise ValueError('boom')" in report["traceback"]
    said, _, after = run.said().rpartition("gave up")
    assert "ended with ValueError: boom, at step 840" in said.rpartition("trainer 3 ")[2]
    assert "boom" not in after, "each error is said once"


def test_row_05_a_permanent_error_is_given_up_at_once(tmp_path: Path) -> None:
    with running(tmp_path, "import sys; sys.exit(127)") as run:
        assert run.wait_end() == 70
    assert "exit code 127" in run.events("gave_up")[0]["why"]
    assert len(trainers(run, "spawned")) == 1
    assert not run.events("restarting")


def test_row_06_exit_75_is_free_and_without_delay(tmp_path: Path) -> None:
    source = TRAINS + "train()\nsys.exit(75 if incarnation < 3 else 0)\n"
    with running(tmp_path, source, backoff=Range(60.0, 60.0)) as run:
        assert run.wait_end() == 0
    assert [entry["delay"] for entry in run.events("restarting")] == [0.0, 0.0]
    assert not (run.logdir / "procsv" / "crashes" / "1.json").exists()
    assert run.account().failures == 0


def test_an_interrupt_of_the_program_alone_is_reported_as_an_interrupt(tmp_path: Path) -> None:
    with running(tmp_path, TRAINS + "train(incarnation)\nif incarnation == 1: os.kill(os.getpid(), 2)\n") as run:
        assert run.wait_end() == 0
    ended = trainers(run, "exited")[0]
    assert (ended["cause"], ended["evidence"], ended["code"]) == ("exception", "KeyboardInterrupt", 130)
    report = json.loads((run.logdir / "procsv" / "crashes" / "1.json").read_text())
    assert report["exception"] == "KeyboardInterrupt"
    assert "os.kill(os.getpid(), 2)" in report["traceback"]
    assert "bootstrap.py" not in report["traceback"] + run.said()


def test_row_08_a_notice_while_the_interpreter_exits_undoes_nothing(tmp_path: Path) -> None:
    late = "class Late:\n    def __del__(self, kill=os.kill, pid=os.getpid()): kill(pid, 15)\nlate = Late()\n"
    with running(tmp_path, TRAINS + "train()\n" + late) as run:
        assert run.wait_end() == 0
    assert [entry["code"] for entry in trainers(run, "exited")] == [0]


def test_row_28_a_stop_during_back_off_ends_down_and_nothing_restarts(tmp_path: Path) -> None:
    source = TRAINS + "train()\nsys.exit(3)\n"
    with running(tmp_path, source, backoff=Range(60.0, 60.0)) as run:
        run.wait_event("restarting", 2)  # the first one is at once
        run.process.send_signal(signal.SIGTERM)
        assert run.wait_end() in NOT_SAVED
    assert len(trainers(run, "spawned")) == 2


def test_row_28_a_stop_during_the_start_ends_down(tmp_path: Path) -> None:
    with running(tmp_path, PAUSES) as run:
        run.wait_spawned("trainer")
        run.process.send_signal(signal.SIGTERM)
        assert run.wait_end() in NOT_SAVED
    assert len(trainers(run, "spawned")) == 1


def test_row_34_a_lack_of_descriptors_at_a_start_is_charged_to_nobody_and_passes(tmp_path: Path) -> None:
    with running(tmp_path, TRAINS + "until_stopped(train())\n", max_failures=2) as run:
        wait_printed(run, "trains 1")
        run.wait_for("services", lambda: [row["state"] for row in run.status()["processes"]].count("serving") == 2)
        watchdog = psutil.Process(run.process.pid)
        limits = watchdog.rlimit(psutil.RLIMIT_NOFILE)
        watchdog.rlimit(psutil.RLIMIT_NOFILE, (watchdog.num_fds(), limits[1]))  # it gets no more than it has
        run.kill("trainer")
        run.wait_for("refusal", lambda: run.said().count("cannot start the trainer") >= 3)
        watchdog.rlimit(psutil.RLIMIT_NOFILE, limits)
        wait_printed(run, "trains 2", incarnation=2)
        assert run.status()["no_progress_count"] == 1
        run.process.send_signal(signal.SIGTERM)
        assert run.wait_end() in NOT_SAVED


@pytest.mark.long
def test_row_36_a_flood_of_output_to_a_stopped_terminal_does_not_block_the_run(tmp_path: Path) -> None:
    source = TRAINS + "run = train()\nfor _ in range(200): print('x' * 100_000)\nprint('done', flush=True)\n"
    (tmp_path / "train.py").write_text(source)
    command = [*LAUNCHER, str(tmp_path / "logdir"), "{}", str(tmp_path / "train.py")]
    reader, writer = os.pipe()  # nobody reads
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.DEVNULL)
    os.close(writer)
    try:
        assert process.wait(300.0) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reader)
    assert (tmp_path / "logdir" / "procsv" / "logs" / "trainer.1.log").stat().st_size > 20_000_000


@pytest.mark.long
def test_row_01_a_standby_killed_at_each_of_its_moments_is_not_the_trainers_fault(tmp_path: Path) -> None:
    """While it imports, before it waits, and as soon as it is the trainer; @N: as the standby of trainer N to be."""
    moments = "standby.import@2=kill;standby.wait@3=kill;standby.begun@4=kill"
    source = "import sqlite3\n" + TRAINS + "until_stopped(train())\n"  # something for it to import
    with running(tmp_path, source, env={"PROCSV_FAILPOINTS": moments}, standby="warm") as run:
        for number in (1, 2):
            wait_printed(run, f"trains {number}", number)
            run.wait_event("exited", number, "standby")
            assert len(trainers(run, "exited")) == number - 1
            run.kill("trainer")
        run.wait_event("standby_ready")
        run.kill("trainer")
        promoted = run.wait_event("promoted")[0]
        wait_printed(run, "trains 5", 5)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait_end() in NOT_SAVED
    ends = [(entry["incarnation"], entry["signal"], entry["cause"]) for entry in trainers(run, "exited")]
    assert ends[:4] == [(number, "SIGKILL", "killed") for number in (1, 2, 3, 4)]
    assert trainers(run, "exited")[3]["pid"] == promoted["pid"]
    assert [entry["incarnation"] for entry in trainers(run, "spawned")] == [1, 2, 3, 4, 5]


GROWS = """
run = train()
taken = bytearray(300 * 2**20) if incarnation == 1 else b""
for page in range(0, len(taken), 4096):
    taken[page] = 1
if incarnation == 1:
    until_stopped(run)
"""


def test_a_trainer_over_its_memory_limit_saves_and_restarts_at_no_charge(tmp_path: Path) -> None:
    received = tmp_path / "heard"
    command = f"{sys.executable} -c \"import sys; open(sys.argv[1], 'a').write(sys.stdin.read())\" {received}"
    settings = {"memory_limit": 250 * 2**20, "backoff": Range(60.0, 60.0), "on_event": command}
    with running(tmp_path, TRAINS + GROWS, **settings) as run:
        assert run.wait_end() == 0
    restarting = run.events("restarting")[0]
    assert restarting["delay"] == 0.0
    assert " 250.0 MiB" in restarting["why"]
    ended = trainers(run, "exited")[0]
    assert (ended["cause"], ended["code"]) == ("stopped", 75)
    told = [json.loads(line) for line in received.read_text().splitlines()]
    assert [entry["event"] for entry in told] == [
        "run_completed"
    ]  # before the run ended, and a planned restart is no news


def test_row_32_only_their_owner_can_open_the_run_directory_and_its_sockets(tmp_path: Path) -> None:
    with running(tmp_path, PAUSES) as run:
        wait_printed(run, "begun")
        run_dir = Path(json.loads((run.logdir / "procsv" / "run.json").read_text())["run_dir"])
        assert run_dir.stat().st_mode & 0o777 == 0o700
        for path in run_dir.glob("*.sock"):
            assert path.stat().st_mode & 0o177 == 0
        run.process.send_signal(signal.SIGTERM)
        assert run.wait_end() in NOT_SAVED


def test_a_planned_fault_that_the_disk_refuses_is_skipped_with_a_message_and_the_run_goes_on(tmp_path: Path) -> None:
    fault = "corrupt logdir by truncate after 0s"
    (tmp_path / "logdir" / "model.ckpt-5.data-00000-of-00001").mkdir(parents=True)  # nothing that could be cut short
    (tmp_path / "logdir" / "model.ckpt-5.index").touch()
    with running(tmp_path, PAUSES, plan=Plan((parse_fault(fault),)).encode()) as run:
        wait_printed(run, "begun")
        (skipped,) = run.wait_event("fault_skipped")
        assert (skipped["fault"], "Is a directory" in skipped["why"]) == (fault, True)
        run.wait_for("word of it", lambda: f"skipping the fault '{fault}': " in run.said())
        run.process.send_signal(signal.SIGTERM)
        assert run.wait_end() in NOT_SAVED
