"""Row 54: no child of the program in a session of its own outlives the trainer into the next
attempt.

The watchdog, bootstrap and summary service are real. The programs need no TensorFlow, and a
stand-in replaces the checkpoint service.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.faults.test_rows_without_tensorflow import running, wait_printed
from tests.support.launched import NOT_SAVED, Launched

pytestmark = pytest.mark.fault

# The first attempt starts a child that should outlive it; later ones say whether it did.
STARTS = """
import os, signal, subprocess, sys, time
from pathlib import Path

here = Path(__file__).parent


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


if os.environ["PROCSV_INCARNATION"] == "1":
    start()
    while not (here / "child").exists():
        time.sleep(0.01)
else:
    print("the child lives:", lives((here / "child").read_text()), flush=True)
print("begun", flush=True)
signal.pause()
"""

DAEMON = """
DAEMON = '''
import os, signal, sys
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
signal.signal(signal.SIGTERM, {on_term})
os.closerange(0, 256)
with open({child!r} + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename({child!r} + ".new", {child!r})
while True: signal.pause()
'''


def start():
    subprocess.run([sys.executable, "-c", DAEMON], env={env}, check=True)
"""

HEIR = """
def start():
    if not os.fork():  # it has all of its parent's descriptors, the writer's lock among them
        os.setsid()
        (here / "new").write_text(str(os.getpid()))
        (here / "new").rename(here / "child")
        while True: signal.pause()
"""


def daemon(tmp_path: Path, on_term: str = "signal.SIG_DFL", env: str = "None") -> str:
    code = DAEMON.replace("{on_term}", on_term).replace("{child!r}", repr(str(tmp_path / "child")))
    return code.replace("{env}", env) + STARTS


def kill_watchdog_and_trainer(run: Launched) -> None:
    """Kill both so that neither sees the other's end."""
    run.kill("watchdog", signal.SIGSTOP)
    run.kill("trainer")
    run.kill("watchdog")
    assert run.wait_end() == -signal.SIGKILL


def stop(run: Launched) -> None:
    run.process.send_signal(signal.SIGTERM)
    assert run.wait_end() in NOT_SAVED


@pytest.mark.long
@pytest.mark.parametrize("on_term", ["signal.SIG_DFL", "signal.SIG_IGN"])
def test_row_54_the_next_launch_ends_a_daemon_that_outlived_watchdog_and_trainer(tmp_path: Path, on_term: str) -> None:
    source = daemon(tmp_path, on_term)
    with running(tmp_path, source) as run:
        wait_printed(run, "begun")
        child = psutil.Process(int((tmp_path / "child").read_text()))
        kill_watchdog_and_trainer(run)
    assert child.is_running()
    with running(tmp_path, source) as run:
        wait_printed(run, "begun", 2)
        wait_printed(run, "the child lives: False", 2)
        assert re.search(rf": ([0-9]+, )*{child.pid}\b", run.said())
        stop(run)


def assert_ended_by_the_next_launch(tmp_path: Path, source: str) -> None:
    with running(tmp_path, source) as run:
        wait_printed(run, "begun")
        kill_watchdog_and_trainer(run)
    with running(tmp_path, source) as run:
        wait_printed(run, "the child lives: False", 2)
        stop(run)


def test_row_54_the_next_launch_ends_a_fork_that_holds_the_writers_lock(tmp_path: Path) -> None:
    assert_ended_by_the_next_launch(tmp_path, "import os, signal\n" + HEIR + STARTS)


def test_row_54_a_living_watchdog_ends_a_daemon_without_environment(tmp_path: Path) -> None:
    with running(tmp_path, daemon(tmp_path, env="{}")) as run:
        wait_printed(run, "begun")
        run.kill("trainer")
        wait_printed(run, "the child lives: False", 2)
        stop(run)


def test_row_54_a_program_that_another_user_started_for_the_same_logdir_is_left_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import signal; signal.pause()", str(tmp_path / "logdir")]
    environment = {**os.environ, "PROCSV_LOGDIR": str(tmp_path / "logdir"), "PROCSV_ROLE": "trainer"}
    board = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        assert_ended_by_the_next_launch(tmp_path, daemon(tmp_path))
        assert board.poll() is None
    finally:
        board.kill()
        board.wait()


ENDS = """
import os, signal
read, write = os.pipe()
if not os.fork():
    {session}
    os.write(write, b"x")
    while True: signal.pause()
os.read(read, 1)
"""


@pytest.mark.parametrize("session", ["os.setsid()", "pass"], ids=["a session of its own", "its session"])
def test_row_54_a_successful_programs_leftover_processes_end_with_it_and_are_named(
    tmp_path: Path, session: str
) -> None:
    with running(tmp_path, ENDS.replace("{session}", session)) as run:
        assert run.wait_end() == 0
    assert run.said().count("left running: process ") == 1


# A process that does not notice the program's end, while multiprocessing's own does sooner or
# later.
TRACKED = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", "resource_tracker"], start_new_session=True)
"""


def test_row_54_a_program_that_leaves_only_multiprocessing_helpers_gets_no_message(tmp_path: Path) -> None:
    with running(tmp_path, TRACKED) as run:
        assert run.wait_end() == 0
    assert "left running" not in run.said()


LEAVES = """
import os, signal
from pathlib import Path
here = Path(__file__).parent
if not (here / "left").exists() and not os.fork():
    os.setsid()
    os.closerange(0, 256)
    (here / "new").write_text(str(os.getpid()))
    (here / "new").rename(here / "left")
    signal.pause()
"""


def test_row_54_a_process_left_by_an_on_event_command_outlives_the_trainers_crashes(tmp_path: Path) -> None:
    (tmp_path / "command.py").write_text(LEAVES)
    program = "import signal\nprint('begun', flush=True)\nsignal.pause()\n"
    with running(tmp_path, program, on_event=f"{sys.executable} {tmp_path / 'command.py'}") as run:
        wait_printed(run, "begun")
        run.kill("trainer")
        run.wait_for("what the command leaves", (tmp_path / "left").exists)
        left = psutil.Process(int((tmp_path / "left").read_text()))
        try:
            wait_printed(run, "begun", 2)
            run.kill("trainer")
            wait_printed(run, "begun", 3)
            assert left.status() != psutil.STATUS_ZOMBIE
            stop(run)
            assert left.is_running()
        finally:
            left.kill()
