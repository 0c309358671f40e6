"""Opening a run: one watchdog a logdir, patience with what a killed run left alive, and clean-up of
what it left dead.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from procsv.base.clock import Clock
from procsv.base.errors import LogdirLocked, UserError
from procsv.base.identity import CHECKPOINT, TRAINER
from procsv.base.journal.file import Journal
from procsv.base.run.lease import Lease, find_place
from procsv.base.run.manifest import Manifest
from procsv.base.run.paths import RunPaths, find_paths
from procsv.base.run.run_file import RunFile, write_run
from procsv.base.system.locks import DirectoryLock, FileLock
from procsv.base.system.process_state import process_state
from procsv.base.system.processes import identify
from procsv.base.system.system_clock import SystemClock
from procsv.base.system.tree_mark import add_mark
from procsv.watchdog.edge.opening.open_run import OpenedRun, open_run, remove_run
from procsv.watchdog.edge.opening.run_lock import TIDYING_S_MAX, OpenRequest
from tests.support.fake_clock import FakeClock
from tests.support.journal import append
from tests.support.programs import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return find_paths(tmp_path / "logdir")


def never(seconds: float) -> None:
    raise AssertionError("nothing to wait for")


def open_it(
    paths: RunPaths,
    wait: Callable[[float], None] = never,
    clock: Clock | None = None,
    us: Lease | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> OpenedRun:
    request = OpenRequest(paths=paths, us=us or a_lease(), clock=clock or FakeClock(), grace_s=25.0, wait=wait, say=say)
    return open_run(request)


def a_lease(**changes: object) -> Lease:
    me = identify(os.getpid())
    lease = Lease(
        run="0123456789abcdef", place=find_place(), pid=me.pid, started=me.started, what="procsv launch train.py"
    )
    return msgspec.structs.replace(lease, **changes)


def close_it(paths: RunPaths, opened: OpenedRun) -> None:
    remove_run(paths, opened, keep_memory=False)
    assert not paths.run_dir.exists()
    assert not paths.shm_dir.exists()


def a_run(paths: RunPaths, **changes: object) -> RunFile:
    me = identify(os.getppid())
    run = RunFile(
        run="0123456789abcdef",
        target="train.py",
        logdir=str(paths.logdir),
        run_dir=str(paths.run_dir),
        shm_dir=str(paths.shm_dir),
        pid=me.pid,
        started=me.started,
        boot=me.boot,
        state="running",
        incarnation=7,
        started_at=12.5,
    )
    return msgspec.structs.replace(run, **changes)


def test_a_fresh_logdir_is_created_and_starts_with_attempt_1(paths: RunPaths) -> None:
    opened = open_it(paths)

    assert opened.first_incarnation == 1
    assert paths.logs.is_dir()
    assert paths.run_dir.stat().st_mode & 0o777 == 0o700
    assert paths.shm_dir.stat().st_mode & 0o777 == 0o700
    close_it(paths, opened)


def test_a_logdir_in_use_is_refused_naming_the_holder_since_when_and_what_to_do(paths: RunPaths) -> None:
    opened = open_it(paths)
    with pytest.raises(UserError) as caught:
        open_it(paths)

    assert caught.value.exit_code == 73
    for words in (f"process {os.getpid()}", "procsv launch train.py", "since 20", "procsv status", "procsv stop"):
        assert words in str(caught.value)
    close_it(paths, opened)
    close_it(paths, open_it(paths))


def test_a_living_watchdog_without_its_lock_file_is_still_respected(paths: RunPaths) -> None:
    close_it(paths, open_it(paths))
    write_run(paths.run_json, a_run(paths), durable=False)
    with pytest.raises(UserError, match=f"process {os.getppid()}"):
        open_it(paths)
    assert not FileLock(paths.run_lock).is_held()

    write_run(paths.run_json, a_run(paths, ended_at=13.0, state="done"), durable=False)
    close_it(paths, open_it(paths))


def test_a_copy_of_a_logdir_in_use_is_free_and_waits_for_no_lock(paths: RunPaths, tmp_path: Path) -> None:
    others = find_paths(tmp_path / "original")
    others.home.mkdir(parents=True)
    others.run_dir.mkdir(parents=True)
    write_run(others.run_json, a_run(others), durable=False)
    for name, step in (("model.ckpt-640", 640), ("model.ckpt-900", 900)):
        manifest = msgspec.json.encode(Manifest(1, step, 1, 1, "r", "periodic", 0.0, {}))
        (others.logdir / f"{name}.manifest.json").write_bytes(manifest)
    (others.logdir / "checkpoint").write_text(f'model_checkpoint_path: "{others.logdir}/model.ckpt-640"\n')
    shutil.copytree(others.logdir, paths.logdir)
    lock = FileLock(others.writer_lock(TRAINER))
    assert lock.try_acquire("the original's trainer", 0.0)
    opened = open_it(paths)
    lock.release()
    assert (opened.first_incarnation, opened.saved_step) == (8, 640)
    close_it(paths, opened)
    shutil.rmtree(others.run_dir)


def test_the_trainers_numbers_continue_and_survive_the_loss_of_run_json(paths: RunPaths) -> None:
    paths.logs.mkdir(parents=True)
    write_run(paths.run_json, a_run(paths, ended_at=13.0), durable=False)
    opened = open_it(paths)
    assert opened.first_incarnation == 8
    close_it(paths, opened)

    paths.run_json.write_text("garbled")
    (paths.logs / "trainer.11.log").touch()
    opened = open_it(paths)
    assert opened.first_incarnation == 12
    close_it(paths, opened)
    assert (paths.home / "run.json.damaged").read_text() == "garbled"


def test_row_30_what_a_killed_run_left_dead_is_cleaned_up_except_for_its_snapshots(paths: RunPaths) -> None:
    close_it(paths, open_it(paths))
    paths.run_dir.mkdir(0o700)
    paths.shm_dir.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(paths.control_socket))
    for name in ("run.lock", "writer.lock", "checkpoint.lock", "trainer.3.heartbeat", "last_words.3.json"):
        (paths.run_dir / name).write_text("stale")
    (paths.shm_dir / "slot.3.0").write_text("a snapshot")
    opened = open_it(paths)

    assert {path.name for path in paths.run_dir.iterdir()} == {"owner.json", "run.lock"}
    assert (paths.shm_dir / "slot.3.0").read_text() == "a snapshot"
    close_it(paths, opened)


def test_row_31_a_file_in_place_of_a_socket_is_never_deleted(paths: RunPaths) -> None:
    opened = open_it(paths)
    paths.control_socket.write_text("somebody's")
    remove_run(paths, opened, keep_memory=False)
    assert paths.control_socket.read_text() == "somebody's"

    paths.control_socket.unlink()
    paths.run_dir.rmdir()


@pytest.mark.parametrize("left", ["writer.lock", "checkpoint.lock", "summary.lock"])
def test_what_a_killed_run_left_alive_is_waited_for(paths: RunPaths, left: str) -> None:
    close_it(paths, open_it(paths))
    paths.run_dir.mkdir(0o700)
    lock, clock = FileLock(paths.run_dir / left), FakeClock()
    said: list[str] = []
    assert lock.try_acquire("left over", 0.0)

    def wait(seconds: float) -> None:
        if clock.advance(1.0) >= 20.0:
            lock.release_lock()

    opened = open_it(paths, wait, clock, say=said.append)
    assert len(said) == 1
    assert f"process {os.getpid()}" in said[0]
    close_it(paths, opened)


def test_what_never_ends_is_refused_by_name(paths: RunPaths) -> None:
    close_it(paths, open_it(paths))
    paths.run_dir.mkdir(0o700)
    lock, clock = FileLock(paths.writer_lock(TRAINER)), FakeClock()
    assert lock.try_acquire("left over", 0.0)

    def wait(seconds: float) -> None:
        clock.advance(1.0)

    with pytest.raises(UserError, match=rf"still run: trainer \(process {os.getpid()}\)") as caught:
        open_it(paths, wait, clock)

    assert caught.value.exit_code == 73
    assert clock.now_s <= 42.0
    assert not FileLock(paths.run_lock).is_held()
    lock.release()
    paths.run_dir.rmdir()


@pytest.mark.parametrize("ended", [False, True], ids=["no run yet", "a run that has ended"])
def test_another_process_that_locks_a_logdir_where_no_run_was_killed_is_named_soon(
    paths: RunPaths, ended: bool
) -> None:
    close_it(paths, open_it(paths))
    if ended:
        write_run(paths.run_json, a_run(paths, ended_at=13.0, state="done"), durable=False)
    clock, said = FakeClock(), list[str]()
    began_s = clock.now_s
    stranger = DirectoryLock(paths.home)
    assert stranger.try_acquire()

    def wait(seconds: float) -> None:
        clock.advance(1.0)

    with pytest.raises(LogdirLocked, match="is locked by"):
        open_it(paths, wait, clock, say=said.append)
    assert clock.now_s - began_s <= TIDYING_S_MAX + 1.0
    assert len(said) == 1
    assert "killed" not in said[0]
    stranger.release_lock()


def test_services_that_remove_the_run_directory_as_they_exit_do_not_take_our_lock_along(paths: RunPaths) -> None:
    close_it(paths, open_it(paths))
    paths.run_dir.mkdir(0o700)
    lock = FileLock(paths.service_lock(CHECKPOINT))
    assert lock.try_acquire("left over", 0.0)

    def wait(seconds: float) -> None:
        for path in paths.run_dir.iterdir():
            path.unlink()
        paths.run_dir.rmdir()
        lock.release_lock()

    opened = open_it(paths, wait)
    assert FileLock(paths.run_lock).is_held()
    with pytest.raises(UserError):
        open_it(paths)
    close_it(paths, opened)


def test_a_service_that_cleans_up_after_a_dead_run_is_waited_for(paths: RunPaths) -> None:
    close_it(paths, open_it(paths))
    paths.run_dir.mkdir(mode=0o700)
    service = FileLock(paths.run_lock)
    assert service.try_acquire("procsv, tidying up", 0.0, is_brief=True)
    waits = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        service.release()

    close_it(paths, open_it(paths, wait))
    assert waits


@pytest.mark.parametrize("leaves", [True, False])
def test_a_watchdog_whose_run_has_just_ended_is_waited_for_but_not_forever(paths: RunPaths, leaves: bool) -> None:
    close_it(paths, open_it(paths))
    paths.run_dir.mkdir(mode=0o700)
    write_run(paths.run_json, a_run(paths, ended_at=13.0, state="done"), durable=False)
    ending, clock = FileLock(paths.run_lock), FakeClock()
    assert ending.try_acquire("procsv launch train.py", 0.0, pid=os.getppid())

    def wait(seconds: float) -> None:
        if clock.advance(1.0) >= 3.0 and leaves:
            ending.release()

    if leaves:
        close_it(paths, open_it(paths, wait, clock))
        return
    with pytest.raises(LogdirLocked, match=f"process {os.getppid()}"):
        open_it(paths, wait, clock)
    ending.release()
    paths.run_dir.rmdir()


def test_a_lock_holder_that_has_not_named_itself_yet_is_waited_for_but_not_forever(paths: RunPaths) -> None:
    close_it(paths, open_it(paths))
    gone = subprocess.Popen(["true"])
    gone.wait()
    paths.run_dir.mkdir(mode=0o700)
    held, clock = FileLock(paths.run_lock), FakeClock()
    assert held.try_acquire("procsv launch train.py", 0.0, pid=gone.pid)  # with a killed run's contents, locked again

    def wait(seconds: float) -> None:
        clock.advance(seconds)

    with pytest.raises(LogdirLocked, match=f"process {gone.pid}"):
        open_it(paths, wait, clock)
    held.release()
    paths.run_dir.rmdir()


def test_a_logdir_that_cannot_be_created_is_exit_73(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as caught:
        open_it(find_paths(tmp_path / "file" / "logdir"))

    assert caught.value.exit_code == 73
    assert "cannot be written" in str(caught.value)


def test_a_launch_with_another_runtime_directory_is_refused_although_nothing_points_to_the_first(
    paths: RunPaths, tmp_path: Path
) -> None:
    they = identify(os.getppid())
    first = open_it(paths, us=a_lease(pid=they.pid, started=they.started))  # run.json is not written yet
    others = RunPaths(paths.logdir, paths.run_dir.with_name(f"elsewhere-{paths.id}"), tmp_path / "shm")
    with pytest.raises(LogdirLocked, match=rf"process {they.pid} \(procsv launch train.py\) runs it since"):
        open_it(others)
    close_it(paths, first)

    second = open_it(others)
    close_it(others, second)
    assert list(paths.home.iterdir()) == [paths.logs]


def test_what_a_killed_run_left_in_another_runtime_directory_is_cleaned_up(paths: RunPaths) -> None:
    detached = find_paths(paths.logdir, outlives_login=True)
    assert detached.run_dir != paths.run_dir
    detached.run_dir.mkdir(mode=0o700)
    for path in (detached.control_socket, detached.run_lock, detached.heartbeat(TRAINER, 7)):
        path.touch()
    paths.home.mkdir(parents=True)
    write_run(paths.run_json, a_run(detached, boot=""), durable=False)

    opened = open_it(paths)

    assert not detached.run_dir.exists()
    assert opened.first_incarnation == 8
    close_it(paths, opened)


def test_row_54_a_living_program_gets_its_time_and_its_children_live_with_it(paths: RunPaths) -> None:
    close_it(paths, open_it(paths))
    environment, said = add_mark(os.environ, paths.id), list[str]()
    command, clock = ("/bin/sh", "-c", "sleep 1000 & echo; wait"), FakeClock()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True) as program:
        assert program.stdout is not None
        program.stdout.readline()
        [child] = psutil.Process(program.pid).children()
        journal = Journal(paths.journal, SystemClock())
        append(journal, "spawned", TRAINER, 1, pid=program.pid)
        journal.close()

        def wait(seconds: float) -> None:
            if clock.advance(1.0) == 20.0:
                assert program.poll() is None
                assert child.status() != psutil.STATUS_ZOMBIE
                program.kill()  # it has saved
                program.wait()
            if any(f"left running: {child.pid}" in text for text in said):
                until(lambda: has_ended(child.pid), os.sched_yield)  # the test's clock does not pass time for that

        opened = open_it(paths, wait, clock, say=said.append)
        assert clock.now_s >= 20.0
        assert has_ended(child.pid)
    close_it(paths, opened)


def has_ended(pid: int) -> bool:
    """Return whether it has ended, even as an unreaped zombie."""
    try:
        return process_state(pid) in ("Z", "X")
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def living(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process with that mark and wait until it runs: during its exec the mark cannot be read."""
    pipe = subprocess.PIPE
    command = ("/bin/sh", "-c", "echo lives; read end")
    with subprocess.Popen(command, env=add_mark(os.environ, mark), stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process


def test_a_member_ends_what_its_own_launch_left_alive_and_nothing_of_others_on_its_machine(
    paths: RunPaths,
) -> None:
    own, other = (
        msgspec.structs.replace(
            paths, own_home=paths.tasks / task, is_member=True, run_dir=paths.run_dir.with_name(f"procsv-{task}")
        )
        for task in ("worker.0", "ps.0")
    )
    clock, said = FakeClock(), list[str]()

    def wait(seconds: float) -> None:
        clock.advance(1.0)
        if any("left running: " in text for text in said):
            left.wait(60)  # takes its exit status, as init does

    with contextlib.ExitStack() as started:
        left, of_another, of_the_coordinator = (started.enter_context(living(one.id)) for one in (own, other, paths))
        try:
            opened = open_it(own, wait, clock, say=said.append)
            assert left.wait(60) == -signal.SIGTERM
            assert (of_another.poll(), of_the_coordinator.poll()) == (None, None)
            close_it(own, opened)
        finally:
            for process in (left, of_another, of_the_coordinator):
                process.kill()
