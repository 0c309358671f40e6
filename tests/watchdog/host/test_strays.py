"""A dead task's leftovers are killed, and a fork that is about to become another task is not."""

from __future__ import annotations

from pathlib import Path

from procsv.watchdog.host.processes import FINISHING_MAX, first_seen
from tests.support.programs import running

# Its child sleeps with the run's mark, as a program's leftover does, and so does a fork of the
# standby.
PROGRAM = """
import os, subprocess, sys
from pathlib import Path
from procsv.base.identity import STANDBY, WATCHDOG, TaskId
from procsv.base.system.locks import DirectoryLock
from procsv.base.system.processes import AdoptedChild, Child
from procsv.base.system.system_clock import SystemClock
from procsv.base.system.tree_mark import add_mark
from procsv.ipc.messaging.fd_channel import FdChannel
from procsv.ipc.messaging.fd_messages import STANDBY_DECODER
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Waiter
from procsv.watchdog.host.processes import Processes

logdir = sys.argv[1]
start = Start(WATCHDOG, "run", 1, logdir, logdir, logdir)
processes = Processes(start, SystemClock(), lambda start: [], {}, Waiter(), DirectoryLock(Path(logdir)))
dead, begins = TaskId("worker", 0), TaskId("worker", 1)
sleeps = [sys.executable, "-c", "import sys; print('sleeps', flush=True); sys.stdin.read()"]  # as long as this program lives


def sleeping():
    environment = add_mark(os.environ, start.paths.id)
    child = subprocess.Popen(sleeps, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    return child


standby, left = sleeping(), sleeping()
line, end = FdChannel.pair(STANDBY_DECODER)
processes.list_child(begins, 1, Child(AdoptedChild(standby.pid)), line)
print("cleared", processes.clear_tree(dead), left.poll(), flush=True)
told = processes.running.pop(begins)
told.task = STANDBY
processes.running[STANDBY] = told
processes.list_child(begins, 1, Child(AdoptedChild(left.pid)))
print("cleared", processes.clear_tree(dead), left.poll(), flush=True)
del processes.running[begins]
while Path(f"/proc/{left.pid}").exists():
    processes.clear_tree(dead)
print("cleared", processes.clear_tree(dead), standby.poll(), flush=True)
"""


def test_the_newest_thousand_leftovers_of_dead_programs_are_known() -> None:
    seen = dict[tuple[int, float], float]()
    for pid in range(1, 1011):
        assert first_seen(seen, (pid, 0.0), float(pid)) == pid

    assert len(seen) == FINISHING_MAX == 1000
    assert first_seen(seen, (1010, 0.0), 5000.0) == 1010.0
    assert first_seen(seen, (11, 0.0), 5000.0) == 11.0, "the oldest of them"
    assert first_seen(seen, (10, 0.0), 5000.0) == 5000.0, "it was forgotten"


def test_a_fork_not_yet_reported_by_its_standby_is_no_stray_of_a_task_that_died_meanwhile(tmp_path: Path) -> None:
    with running(PROGRAM, tmp_path) as program:
        assert program.wait_said("cleared") == "False None", "it may be one: it is looked at again"
        assert program.wait_said("cleared", 2) == "True None", "it is the task that the standby was to be"
        assert program.wait_said("cleared", 3) == "True None", "it is left behind, and gone"
        assert program.wait() == 0
