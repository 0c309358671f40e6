"""Two writers never share a logdir: what an older run left alive, and another machine, as real processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from procsv.base.identity import TRAINER
from procsv.base.run.lease import Lease, LeaseFile, ProcessSpace, find_place
from procsv.base.run.paths import find_paths
from procsv.base.system.locks import DirectoryLock
from procsv.base.system.process_state import process_state
from procsv.ipc.messaging.launch_settings import Range
from tests.support.launched import NOT_SAVED, remove_live
from tests.support.programs import freeze
from tests.watchdog.test_main import IDLE, launched

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.fault

SYS_PIDFD_GETFD = 438
NO_LOCKS = {"PROCSV_FAILPOINTS": "locks.directory=enolck"}
ELSEWHERE = Lease(
    run="f" * 16,
    place=ProcessSpace("node17", "another boot", "pid:[1]"),
    pid=4242,
    started=1.0,
    what="procsv launch train.py",
    since=1.8e9,
    renewed=1.8e9,
)


def kill(*pids: int) -> None:
    """Kill them and wait until they are gone."""
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
            processes[-1].kill()
    psutil.wait_procs(processes, 30)


@contextlib.contextmanager
def abandoned(tmp_path: Path, env: dict[str, str]) -> Iterator[int]:
    """Return the pid of a frozen trainer. All other processes of its run are dead, and only the logdir names it."""
    with launched(tmp_path, IDLE, env=env) as run:
        run.begun()
        trainer = run.pid("trainer")
        try:
            freeze(trainer)
            kill(run.process.pid, run.pid("checkpoint"), run.pid("summary"))
            paths = run.file().paths
            shutil.rmtree(paths.run_dir)
            paths.run_json.unlink()
            yield trainer
        finally:
            kill(trainer)


def is_alive(pid: int) -> bool:
    """Return whether the process runs. A zombie orphan that waits to be reaped does not."""
    try:
        return process_state(pid) not in ("Z", "X")
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def elsewhere() -> Iterator[dict[str, str]]:
    """Return the environment of a launch with another runtime directory."""
    with tempfile.TemporaryDirectory(prefix="psv-") as runtime:
        yield {"XDG_RUNTIME_DIR": runtime}


def lease_file(tmp_path: Path) -> LeaseFile:
    return LeaseFile(find_paths(tmp_path / "logdir"))


def put(tmp_path: Path, lease: Lease) -> None:
    """Write the lease as another machine does."""
    find_paths(tmp_path / "logdir").home.mkdir(parents=True, exist_ok=True)
    lease_file(tmp_path).take_lease(lease)


@pytest.mark.long
@pytest.mark.parametrize("locks", [{}, NO_LOCKS], ids=["locks", "no locks"])
def test_row_53_nothing_starts_beside_a_frozen_trainer_that_only_the_logdir_knows(
    tmp_path: Path, elsewhere: dict[str, str], locks: dict[str, str]
) -> None:
    with abandoned(tmp_path, locks) as old, launched(tmp_path, IDLE, env={**elsewhere, **locks}) as run:
        run.until("the old trainer's pid", lambda: f": process {old} (" in run.said())
        assert len(run.journal("spawned", "trainer")) == 1

        os.kill(old, signal.SIGCONT)
        run.begun(2)
        assert not is_alive(old)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() in NOT_SAVED
    assert lease_file(tmp_path).read_lease() is None


@pytest.mark.long
def test_row_53_a_dead_runs_frozen_trainer_is_killed_once_its_time_is_over(
    tmp_path: Path, elsewhere: dict[str, str]
) -> None:
    env = {**elsewhere, "STAND_IN_MARGIN_S": "0.5"}
    with abandoned(tmp_path, {}) as old, launched(tmp_path, IDLE, grace_s=0.5, env=env) as run:
        run.begun(2)
        assert f": {old}\n" in run.said()
        assert not is_alive(old)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() in NOT_SAVED


@pytest.mark.parametrize("locks", [{}, NO_LOCKS], ids=["locks", "no locks"])
def test_row_53_a_frozen_watchdog_without_run_json_still_has_its_logdir(
    tmp_path: Path, elsewhere: dict[str, str], locks: dict[str, str]
) -> None:
    with launched(tmp_path, IDLE, env=locks) as run:
        run.begun()
        freeze(run.process.pid)
        run.file().paths.run_json.unlink()
        env = {**elsewhere, **locks, "STAND_IN_MARGIN_S": "0.5"}
        with launched(tmp_path, IDLE, grace_s=0.5, env=env) as second:
            assert second.end() == 73
        assert f": process {run.process.pid} (procsv launch" in run.said()
        run.process.send_signal(signal.SIGCONT)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() in NOT_SAVED


def test_row_53_no_process_of_a_run_is_ended_while_its_watchdog_lives_whatever_files_are_gone(
    tmp_path: Path, elsewhere: dict[str, str]
) -> None:
    source = (
        "import os, subprocess, sys, signal\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], start_new_session=True)\n"
        "print('child', child.pid, flush=True)\n"
        f"{IDLE}"
    )
    with launched(tmp_path, source, backoff=Range(0.05, 60.0)) as run:
        run.begun()
        child = int(re.findall(r"child (\d+)", run.log())[0])
        freeze(run.process.pid)
        os.kill(run.pid("trainer"), signal.SIGKILL)
        paths = find_paths(run.logdir)
        for path in (paths.run_json, paths.lease):
            path.unlink()
        env = {**elsewhere, "STAND_IN_MARGIN_S": "0.5"}
        with launched(tmp_path, IDLE, grace_s=0.5, env=env) as second:
            assert second.end() == 73
        assert re.search(rf"still run: .*process {run.process.pid} \(", run.said())
        assert is_alive(child)
        run.process.send_signal(signal.SIGCONT)
        run.begun(2)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() in NOT_SAVED


def test_row_53_everything_that_writes_to_a_logdir_holds_its_lock(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE, backoff=Range(0.05, 60.0)) as run:
        lock = DirectoryLock(find_paths(run.logdir).home)
        for number in (1, 2):
            run.begun(number)
            assert not lock.try_acquire()
            writers = {run.process.pid, *(run.pid(role) for role in ("trainer", "checkpoint", "summary"))}
            assert set(lock.holders()) == writers
            if number == 1:
                psutil.Process(run.pid("trainer")).kill()
        run.process.send_signal(signal.SIGTERM)
        assert run.end() in NOT_SAVED
    assert lock.try_acquire()
    lock.release_lock()


@pytest.mark.long
def test_row_53_a_writers_lock_without_its_file_still_keeps_the_next_trainer_from_starting(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE, backoff=Range(0.05, 60.0)) as run:
        run.begun()
        trainer, path = run.pid("trainer"), run.file().paths.writer_lock(TRAINER)
        fds = Path(f"/proc/{trainer}/fd").iterdir()
        lock = take_fd(trainer, next(int(fd.name) for fd in fds if os.readlink(fd) == str(path)))  # noqa: PTH115
        path.unlink()
        kill(trainer)
        run.until("the alert", lambda: "reboot" in run.said())
        assert len(run.journal("spawned", "trainer")) == 1

        os.close(lock)
        run.begun(2)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() in NOT_SAVED


def take_fd(pid: int, fd: int) -> int:
    """Take another process's open file as if inherited: nothing shows that we are one of its tree."""
    pidfd = os.pidfd_open(pid)
    taken = ctypes.CDLL(None, use_errno=True).syscall(SYS_PIDFD_GETFD, pidfd, fd, 0)
    os.close(pidfd)
    assert taken >= 0, os.strerror(ctypes.get_errno())
    return int(taken)


@pytest.mark.long
def test_row_53_lock_and_lease_are_renewed_in_a_directory_that_was_replaced(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE, grace_s=12.0) as run:
        run.begun()
        paths = find_paths(run.logdir)
        old = lease_file(tmp_path).holder()
        remove_live(paths.home)
        run.until("a lease", lambda: lease_file(tmp_path).holder() is not None)
        new = lease_file(tmp_path).holder()
        assert old is not None
        assert new is not None
        assert new.run == old.run
        run.until("its lock", lambda: is_locked(paths.home))
        run.process.send_signal(signal.SIGTERM)
        assert run.end() in NOT_SAVED


def is_locked(home: Path) -> bool:
    lock = DirectoryLock(home)
    is_free = lock.try_acquire()
    lock.release_lock()
    return not is_free


def test_row_53_a_launch_refuses_a_logdir_whose_lease_another_machine_renews(tmp_path: Path) -> None:
    put(tmp_path, ELSEWHERE)
    with launched(tmp_path, IDLE, env={"STAND_IN_LEASE_S": "600.0"}) as run:
        run.until("the watch", lambda: "process 4242 on node17 (procsv launch train.py) wrote to" in run.said())
        put(tmp_path, msgspec.structs.replace(ELSEWHERE, renewed=1.8e9 + 5))
        assert run.end() == 73
        assert "in use: process 4242 on node17 (procsv launch train.py) " in run.said()
        assert "end it there" in run.said()
    assert not run.journal("spawned")


@pytest.mark.long
def test_row_53_an_unrenewed_lease_of_another_machine_is_taken_over(tmp_path: Path) -> None:
    put(tmp_path, ELSEWHERE)
    with launched(tmp_path, IDLE, env={"STAND_IN_LEASE_S": "2.0"}) as run:
        run.begun()
        taken = run.journal("lease_taken_over")[0]
        assert (taken["host"], taken["pid"], taken["run"]) == ("node17", 4242, ELSEWHERE.run)
        lease = lease_file(tmp_path).holder()
        assert lease is not None
        assert (lease.place, lease.pid) == (find_place(), run.process.pid)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() in NOT_SAVED


@pytest.mark.long
def test_row_53_a_run_whose_lease_another_machine_has_taken_ends_and_writes_nothing_more(tmp_path: Path) -> None:
    talks = "import time; print('begun', flush=True)\nwhile True: print('.', flush=True); time.sleep(0.01)"
    with launched(tmp_path, talks) as run:
        run.begun()
        trainer, paths = run.pid("trainer"), find_paths(run.logdir)
        put(tmp_path, ELSEWHERE)
        run.until("news of it", lambda: "giving up" in run.said())
        records = (paths.journal, paths.run_json)
        before = [record.read_bytes() for record in records]
        assert run.end() == 70
        assert "process 4242 on node17 (procsv launch train.py) has taken" in run.said()
        assert not is_alive(trainer)
        assert [record.read_bytes() for record in records] == before
    assert lease_file(tmp_path).holder() == ELSEWHERE
    assert not run.journal("exited", "trainer"), "which is the other's directory"


def test_row_68_a_run_frozen_in_its_lease_renewal_that_wakes_after_a_takeover_takes_nothing_back(
    tmp_path: Path,
) -> None:
    env = {"PROCSV_FAILPOINTS": "lease.before_replacing=1*off->1*stop", "STAND_IN_RENEW_S": "0.2"}
    with launched(tmp_path, IDLE, env=env) as run:
        run.until("its stop", lambda: process_state(run.process.pid) == "T")
        put(tmp_path, ELSEWHERE)
        before = find_paths(run.logdir).run_json.read_bytes()
        run.process.send_signal(signal.SIGCONT)
        assert run.end() == 70
        assert "process 4242 on node17 (procsv launch train.py) has taken" in run.said()
        assert find_paths(run.logdir).run_json.read_bytes() == before
    assert lease_file(tmp_path).holder() == ELSEWHERE
