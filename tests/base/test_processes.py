"""Processes are started in their own session, watched by pidfd, ended with their whole tree and reaped once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from procsv.base.outcome import Exit
from procsv.base.system.process_state import descendants, has_open
from procsv.base.system.processes import Child, ExternalProcess, ProcessIdentity, boot_id, identify, spawn
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.zmq_transport import Waiter
from tests.support.programs import ROOT, running, until

pytestmark = pytest.mark.fault

FAMILY = """
    import os, subprocess, sys
    sleeper = [sys.executable, "-c", "import time; time.sleep(1000)"]
    near = subprocess.Popen(sleeper)
    far = subprocess.Popen(sleeper, start_new_session=True)
    print("family", near.pid, far.pid, flush=True)
    sys.stdin.readline() if sys.argv[1] == "leave" else far.wait()
"""


def test_an_open_file_is_found_by_any_path_to_it_removed_or_not(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    path = tmp_path / "link" / "run.lock"
    assert not has_open(os.getpid(), path)
    with path.open("w"):
        assert has_open(os.getpid(), path)
        path.unlink()
        assert has_open(os.getpid(), path)


class Nursery:
    """Children with output that a test can wait for. They end with the test."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._children: list[Child] = []

    def start(self, source: str, *args: str, pass_fds: tuple[int, ...] = (), cwd: Path | None = None) -> Child:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "MARK": "here"}
        argv = [sys.executable, "-c", textwrap.dedent(source), *args]
        self._children.append(spawn(argv, env=env, log=self.log, pass_fds=pass_fds, cwd=cwd))
        return self._children[-1]

    def output(self) -> str:
        """Return the output once it is a whole line."""
        until(lambda: self.log.exists() and self.log.read_text().endswith("\n"), lambda: Waiter().wait(0.005))
        return self.log.read_text()

    def close(self) -> None:
        for child in self._children:
            child.signal_tree(signal.SIGKILL)
            wait(child)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path / "logs" / "trainer.1.log")
    yield nursery
    nursery.close()


def wait(child: Child) -> Exit:
    if child.exit is None:
        waiter = Waiter()
        waiter.register(child.pidfd)
        assert waiter.wait(300.0), "it does not end"
    return child.reap()


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(pid: int) -> None:
    until(lambda: is_gone(pid), lambda: Waiter().wait(0.005))


# -- ends --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("code", [0, 1, 75, 255])
def test_an_exit_code_is_reported_unchanged(nursery: Nursery, code: int) -> None:
    assert wait(nursery.start(f"raise SystemExit({code})")) == Exit(code, None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_a_fatal_signal_is_reported_and_named(nursery: Nursery, number: signal.Signals) -> None:
    child = nursery.start("import time; print('up', flush=True); time.sleep(1000)")
    nursery.output()
    child.signal(number)
    ended = wait(child)
    assert ended == Exit(None, number)
    assert (ended.signal_name, str(ended)) == (number.name, number.name)


def test_an_exit_has_a_description_in_words() -> None:
    assert str(Exit(3, None)) == "exit code 3"
    assert Exit(3, None).signal_name is None
    assert str(Exit(None, 250)) == "SIG250"


def test_a_death_is_noticed_at_once(nursery: Nursery) -> None:
    child = nursery.start("import time; print('up', flush=True); time.sleep(1000)")
    nursery.output()
    assert not child.has_ended()
    waiter, clock = Waiter(), SystemClock()
    waiter.register(child.pidfd)
    child.signal(signal.SIGKILL)
    before_s = clock.monotonic()
    assert waiter.wait(300.0) == [child.pidfd]
    assert clock.monotonic() - before_s < 100.0  # the bar is 0.05 s; a loaded machine may be slower to run us
    assert child.has_ended()


def test_a_dead_child_keeps_its_pid_until_it_is_reaped_exactly_once(nursery: Nursery) -> None:
    child = nursery.start("raise SystemExit(4)")
    waiter = Waiter()
    waiter.register(child.pidfd)
    assert waiter.wait(300.0)
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    assert child.has_ended()

    assert child.reap() == child.reap() == Exit(4, None)
    assert child.has_ended()
    assert not psutil.pid_exists(child.pid)
    child.signal(signal.SIGKILL)
    child.signal_tree(signal.SIGKILL)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(child.pidfd)


def test_reaping_ends_the_rest_of_the_group(nursery: Nursery) -> None:
    child = nursery.start(FAMILY, "leave")  # standard input is empty: it leaves at once
    near, far = map(int, nursery.output().split()[1:])
    assert wait(child).code == 0
    wait_gone(near)
    assert not is_gone(far), "one that has left the group and lost its parent is not ours to find"
    os.kill(far, signal.SIGKILL)
    wait_gone(far)


def test_a_tree_is_ended_with_a_grandchild_that_has_its_own_session(nursery: Nursery) -> None:
    child = nursery.start(FAMILY, "stay")
    near, far = map(int, nursery.output().split()[1:])
    assert {process.pid for process in descendants(child.pid)} == {near, far}
    child.signal_tree(signal.SIGKILL)
    assert wait(child) == Exit(None, signal.SIGKILL)
    for pid in (near, far):
        wait_gone(pid)


def test_a_signal_to_one_process_leaves_its_tree_alone(nursery: Nursery) -> None:
    child = nursery.start(FAMILY, "stay")
    near, far = map(int, nursery.output().split()[1:])
    child.signal(signal.SIGSTOP)
    assert not is_gone(near)
    assert not is_gone(far)
    assert not child.has_ended(), "one that is stopped is not dead"


# -- starts ------------------------------------------------------------------------------------------------------
def test_a_child_has_its_own_session_an_empty_stdin_and_its_output_in_the_log(nursery: Nursery, tmp_path: Path) -> None:
    source = """
        import os, sys
        assert os.getsid(0) == os.getpid() == os.getpgid(0)
        assert sys.stdin.read() == ""
        print(os.environ["MARK"], os.getcwd(), flush=True)
        print("and the errors", file=sys.stderr)
    """
    assert wait(nursery.start(source, cwd=tmp_path)) == Exit(0, None)
    assert nursery.log.read_text() == f"here {tmp_path}\nand the errors\n"
    wait(nursery.start("print('again')"))
    assert nursery.log.read_text().endswith("and the errors\nagain\n"), "a log is appended to"


def test_a_child_inherits_only_the_named_descriptors(nursery: Nursery) -> None:
    read_end, write_end = os.pipe()
    other, _ = pair = os.pipe()
    os.set_inheritable(other, True)
    source = """
        import os, sys
        os.write(int(sys.argv[1]), b"hello")
        try:
            os.fstat(int(sys.argv[2]))
        except OSError:
            raise SystemExit(0)
        raise SystemExit(1)
    """
    child = nursery.start(source, str(write_end), str(other), pass_fds=(write_end,))
    assert wait(child).code == 0
    assert os.read(read_end, 10) == b"hello"
    for fd in (read_end, write_end, *pair):
        os.close(fd)


def test_a_missing_program_is_an_error_and_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        spawn([str(tmp_path / "nothing")], env={}, log=tmp_path / "log")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# -- identity ----------------------------------------------------------------------------------------------------
def test_a_process_is_alive_from_its_start_to_its_death_and_a_zombie_is_not(nursery: Nursery) -> None:
    child = nursery.start("import time; print('up', flush=True); time.sleep(1000)")
    who = identify(child.pid)
    assert who.is_alive()
    child.signal(signal.SIGKILL)
    waiter = Waiter()
    waiter.register(child.pidfd)
    assert waiter.wait(300.0)
    assert not who.is_alive(), "a zombie"
    child.reap()
    assert not who.is_alive()
    with pytest.raises(psutil.NoSuchProcess):
        identify(child.pid)


def test_row_30_a_later_process_with_the_same_pid_or_from_another_boot_is_a_different_one() -> None:
    me = identify(os.getpid())
    assert me.is_alive()
    assert not ProcessIdentity(me.pid, me.started - 1.0, me.boot).is_alive()
    assert not ProcessIdentity(me.pid, me.started, "another boot").is_alive()
    assert me.boot == boot_id() != ""


def test_row_33_setting_the_clock_changes_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    me = identify(os.getpid())
    monkeypatch.setattr(psutil, "boot_time", lambda: 0.0)
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 0.0)
    assert me.is_alive()
    assert identify(os.getpid()) == me


def test_a_process_name_that_looks_like_its_own_stat_line_is_parsed_correctly(nursery: Nursery) -> None:
    source = """
        from pathlib import Path
        Path("/proc/self/comm").write_text("a) Z 1 2 (b")
        print("up", flush=True)
        import time; time.sleep(1000)
    """
    child = nursery.start(source)
    nursery.output()
    assert identify(child.pid).is_alive()


def test_an_external_process_is_watched_and_ended_with_its_tree() -> None:
    with running(FAMILY, "stay") as program:
        near, far = map(int, program.wait_said("family").split())
        external = ExternalProcess(program.pid)
        assert not external.has_ended()
        external.signal_tree(signal.SIGKILL)
        assert program.wait() == -signal.SIGKILL
        assert external.has_ended()
        external.signal_tree(signal.SIGKILL)
        external.close()
        external.close()
        for pid in (near, far):
            wait_gone(pid)


def test_an_external_process_that_died_before_it_was_first_seen_counts_as_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(300.0)
    assert ExternalProcess(process.pid).has_ended()
    assert descendants(process.pid) == []
