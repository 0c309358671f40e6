"""A lock has one holder, is released with its last process, and cannot be taken by looking at it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from procsv.base.system.locks import DirectoryLock, FileLock, Holder, is_lock_free, try_lock
from procsv.base.system.process_state import process_state
from procsv.ipc.messaging.zmq_transport import Waiter
from tests.support.programs import freeze, running, until
from tests.support.stale_mount import StaleMount

HOLDER = """
    import os, subprocess, sys
    from pathlib import Path
    from procsv.base.system.locks import FileLock
    lock = FileLock(Path(sys.argv[1]))
    print("got", lock.try_acquire("a test", 5.0))
    if lock.fd >= 0:
        os.set_inheritable(lock.fd, sys.argv[2] == "yes")
    if sys.argv[2] == "yes":
        child = subprocess.Popen([sys.executable, "-c", "print('child', __import__('os').getpid()); input()"],
                                 close_fds=False)
    sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.lock"


def test_a_lock_has_one_holder_and_names_it(path: Path) -> None:
    first, second = FileLock(path), FileLock(path)
    assert not first.is_held()
    assert first.holder() is None
    assert first.try_acquire("procsv launch", 12.5)

    assert not second.try_acquire("another", 13.0)
    assert second.is_held()
    assert second.holder() == Holder(os.getpid(), "procsv launch", 12.5)
    assert path.stat().st_mode & 0o777 == 0o600

    first.release()
    assert not path.exists()
    assert second.try_acquire("another", 13.0)
    second.release()


def test_releasing_leaves_a_file_that_holds_no_lock(path: Path) -> None:
    first, second = FileLock(path), FileLock(path)
    assert first.try_acquire("a much longer text than the next one", 1.0)
    first.release_lock()
    first.release_lock()

    assert path.exists()
    assert not second.is_held()
    assert second.try_acquire("short", 2.0)
    assert second.holder() == Holder(os.getpid(), "short", 2.0)
    second.release()
    second.release()


def test_a_lock_in_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "gone" / "run.lock")
    with pytest.raises(FileNotFoundError):
        lock.try_acquire("x", 0.0)
    assert not lock.is_held()


def test_a_file_with_other_contents_names_no_holder(path: Path) -> None:
    path.write_bytes(b"\xff{")
    assert FileLock(path).holder() is None


def test_a_lock_whose_file_is_removed_while_it_is_being_taken_is_taken_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder unlinks the file as it releases, so a lock on the old file holds nothing."""
    opened = 0
    real_open = os.open

    def open_and_lose(name: Path, flags: int, mode: int = 0o777) -> int:
        nonlocal opened
        fd = real_open(name, flags, mode)
        opened += 1
        if opened <= 2:
            path.unlink()
        return fd

    lock = FileLock(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_and_lose)
        assert lock.try_acquire("x", 0.0)
    assert opened == 3
    assert os.path.samestat(os.fstat(lock.fd), path.stat())
    assert not FileLock(path).try_acquire("y", 0.0)
    lock.release()


@pytest.mark.fault
def test_a_lock_dies_with_its_holder(path: Path) -> None:
    with running(HOLDER, path, "no") as holder:
        assert holder.wait_said("got") == "True"
        ours = FileLock(path)
        assert ours.is_held()
        assert not ours.try_acquire("x", 0.0)
        who = ours.holder()
        assert who is not None
        assert who.pid == holder.pid

        holder.kill()
        assert not ours.is_held()
        assert ours.try_acquire("x", 0.0)
        ours.release()


@pytest.mark.fault
def test_an_inherited_lock_is_held_until_the_last_process_of_the_tree_is_dead(path: Path) -> None:
    with running(HOLDER, path, "yes") as holder:
        child = int(holder.wait_said("child"))
        fd = os.pidfd_open(child)
        holder.kill()
        ours = FileLock(path)
        assert ours.is_held()
        assert not ours.try_acquire("x", 0.0)

        holder.close()  # closing the child's input ends it
        wait_dead(fd)
        assert ours.try_acquire("x", 0.0)
        ours.release()


@pytest.mark.fault
def test_looking_at_a_lock_takes_it_from_nobody(path: Path) -> None:
    looker = """
        import sys
        from pathlib import Path
        from procsv.base.system.locks import FileLock
        lock = FileLock(Path(sys.argv[1]))
        print("looking")
        while True:
            lock.is_held()
    """
    path.touch()
    with running(looker, path) as one, running(looker, path) as two:
        one.wait_said("looking")
        two.wait_said("looking")
        for _ in range(2000):
            lock = FileLock(path)
            assert not lock.is_held(), "two who look do not see each other"
            assert lock.try_acquire("x", 0.0)
            lock.release_lock()


@pytest.mark.fault
def test_only_one_of_many_that_want_the_lock_gets_it(path: Path) -> None:
    racer = """
        import sys
        from pathlib import Path
        from procsv.base.system.locks import FileLock
        lock = FileLock(Path(sys.argv[1]))
        print("ready")
        sys.stdin.readline()
        print("got", lock.try_acquire("x", 0.0))
        sys.stdin.readline()
    """
    with running(racer, path) as a, running(racer, path) as b, running(racer, path) as c:
        for program in (a, b, c):
            program.wait_said("ready")
        for program in (a, b, c):
            program.tell()
        assert sorted(program.wait_said("got") for program in (a, b, c)) == ["False", "False", "True"]


def test_a_lock_can_be_read_although_its_file_was_removed(path: Path) -> None:
    lock = FileLock(path)
    assert lock.try_acquire("x", 0.0)
    look = os.open(f"/proc/self/fd/{lock.fd}", os.O_RDWR)
    path.unlink()
    assert not is_lock_free(look)
    lock.release_lock()
    assert is_lock_free(look)
    os.close(look)


# -- directory locks -------------------------------------------------------------------------------------------
DIRECTORY_HOLDER = """
    import subprocess, sys
    from pathlib import Path
    from procsv.base.system.locks import DirectoryLock
    lock = DirectoryLock(Path(sys.argv[1]))
    print("got", lock.try_acquire())
    if sys.argv[2] == "hand on":
        child = subprocess.Popen([sys.executable, "-c", "print('child', __import__('os').getpid()); input()"],
                                 pass_fds=(lock.fd,))
    sys.stdin.readline()
"""


@pytest.mark.parametrize("failpoints", ["", "locks.directory=enolck"], ids=["locks", "no locks"])
def test_a_directory_is_locked_by_its_holders_and_their_children_who_can_be_named(
    tmp_path: Path, failpoints: str
) -> None:
    with running(DIRECTORY_HOLDER, tmp_path, "hand on", failpoints=failpoints) as holder:
        child = int(holder.wait_said("child"))
        fd = os.pidfd_open(child)
        with running(DIRECTORY_HOLDER, tmp_path, "alone", failpoints=failpoints) as second:
            assert second.wait_said("got") == "False"
        holder.kill()
        lock = DirectoryLock(tmp_path, has_flock=not failpoints)
        assert lock.holders() == [child]
        with running(DIRECTORY_HOLDER, tmp_path, "alone", failpoints=failpoints) as second:
            assert second.wait_said("got") == "False"
        assert list(tmp_path.iterdir()) == []

        holder.close()
        wait_dead(fd)
        assert lock.holders() == []
        assert lock.try_acquire()
        lock.release_lock()


def test_a_directorys_lock_moves_with_it_and_follows_its_replacement(tmp_path: Path) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    lock = DirectoryLock(home)
    assert lock.try_acquire()
    home.rename(away)
    assert not DirectoryLock(away).try_acquire()
    lock.relock()  # nothing is there: the lock is kept
    assert not DirectoryLock(away).try_acquire()
    assert not lock.is_in_place()

    home.mkdir()
    lock.relock()
    assert lock.is_in_place()
    assert not DirectoryLock(home).try_acquire()
    other = DirectoryLock(away)
    assert other.try_acquire()
    for held in (lock, other):
        held.release_lock()


def test_a_stale_directory_lock_is_taken_again_and_an_unreadable_one_is_kept(
    stale_files: StaleMount,
) -> None:
    home = stale_files.directory / "home"
    home.mkdir()
    lock, other = DirectoryLock(home), DirectoryLock(home)
    assert lock.try_acquire()
    stale_files.make_stale()
    assert not lock.is_in_place()
    assert not lock.is_deleted(), "as far as anybody can tell"

    lock.relock()
    assert lock.is_in_place()
    assert not other.try_acquire()
    held = lock.fd
    stale_files.close()
    with pytest.raises(OSError, match=r"abort|not connected"):
        lock.is_in_place()
    lock.relock()
    assert lock.fd == held
    lock.release_lock()


def test_a_deleted_locked_directory_is_told_apart_from_a_moved_one(tmp_path: Path) -> None:
    path = tmp_path / "home"
    path.mkdir()
    lock = DirectoryLock(path)
    assert not lock.is_deleted(), "it has none"
    assert lock.try_acquire()
    try:
        path.rename(tmp_path / "moved")
        assert not lock.is_deleted()
        (tmp_path / "moved").rmdir()
        assert lock.is_deleted()
    finally:
        lock.release_lock()


def test_a_replacement_directory_that_another_process_has_locked_is_not_followed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    lock, other = DirectoryLock(home), DirectoryLock(home)
    assert lock.try_acquire()
    home.rename(tmp_path / "away")
    home.mkdir()
    assert other.try_acquire()
    lock.relock()
    assert not lock.is_in_place()
    assert not DirectoryLock(tmp_path / "away").try_acquire()
    for held in (lock, other):
        held.release_lock()


def wait_dead(pidfd: int) -> None:
    waiter = Waiter()
    waiter.register(pidfd)
    assert waiter.wait(300.0)
    os.close(pidfd)


def test_a_stopped_holder_is_woken_and_the_previous_holder_is_left_alone(path: Path) -> None:
    with running(HOLDER, path, "no") as holder:
        assert holder.wait_said("got") == "True"
        freeze(holder.pid)
        FileLock(path).wake()
        until(lambda: process_state(holder.pid) != "T", lambda: os.sched_yield())
        holder.tell()
        assert holder.wait() == 0

    with running("import sys\nprint('here')\nsys.stdin.readline()") as innocent:
        innocent.wait_said("here")
        freeze(innocent.pid)
        lock = FileLock(path)
        text = path.read_text().replace(str(holder.pid), str(innocent.pid))
        path.write_text(text)  # as after a pid was reused: nobody holds the lock
        lock.wake()
        assert process_state(innocent.pid) == "T"


@pytest.mark.parametrize("is_replaced", [False, True])
def test_the_holder_recreates_and_relocks_a_lock_file_that_was_removed(path: Path, *, is_replaced: bool) -> None:
    lock, other = FileLock(path), FileLock(path)
    assert lock.try_acquire("procsv launch", 12.5)
    assert lock.relock(), "it is in place"
    path.unlink()
    if is_replaced:
        path.touch()
    assert not other.is_held()

    assert lock.relock()
    assert lock.is_in_place()
    assert other.holder() == Holder(os.getpid(), "procsv launch", 12.5)
    assert not other.try_acquire("another", 13.0)
    lock.release()
    assert not path.exists()


def test_a_lock_that_another_process_took_in_the_meantime_stays_with_it(path: Path) -> None:
    lock, other = FileLock(path), FileLock(path)
    assert lock.try_acquire("first", 1.0)
    path.unlink()
    assert other.try_acquire("second", 2.0)
    before = lock.fd

    assert not lock.relock()
    assert lock.fd == before, "what it holds, it holds on to"
    other.release()
    assert lock.relock()
    lock.release()


def test_a_lock_whose_directory_is_missing_is_restored_when_it_returns(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "run" / "run.lock")
    lock.path.parent.mkdir()
    assert lock.try_acquire("first", 1.0)
    lock.path.unlink()
    lock.path.parent.rmdir()
    with pytest.raises(FileNotFoundError):
        lock.relock()
    lock.path.parent.mkdir()
    assert lock.relock()
    lock.release()


def test_looking_at_a_free_lock_leaves_it_free(path: Path) -> None:
    path.touch()
    with path.open() as looking, path.open() as taking:
        assert is_lock_free(looking.fileno())
        assert try_lock(taking.fileno())
        assert not is_lock_free(looking.fileno())


def test_a_lock_on_a_filesystem_with_locks_is_reliable(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path, has_flock=False)
    assert lock.try_acquire()
    assert lock.has_flock
    lock.release_lock()


def test_releasing_a_lock_that_was_never_taken_leaves_no_trace(tmp_path: Path) -> None:
    path, stdin = tmp_path / "run.lock", os.fstat(0)
    path.touch()
    unused = FileLock(path)
    unused.release_lock()
    unused.release()
    assert path.exists(), "it is another's"
    home = DirectoryLock(tmp_path)
    assert home.try_acquire()
    home.release_lock()
    home.release_lock()
    assert os.path.samestat(os.fstat(0), stdin)


def test_a_lock_whose_file_is_gone_can_still_be_released(path: Path) -> None:
    lock = FileLock(path)
    assert lock.try_acquire("a test", 1.0)
    path.unlink()
    lock.release()
    assert lock.fd == -1


def test_a_child_does_not_inherit_a_directory_lock_unless_asked_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        DirectoryLock(tmp_path / "file").try_acquire()
    lock = DirectoryLock(tmp_path)
    assert lock.try_acquire()
    assert not os.get_inheritable(lock.fd)
    lock.release_lock()


def test_opening_a_directory_does_not_hold_it_where_locks_work(tmp_path: Path) -> None:
    looks = "import os, sys\nfd = os.open(sys.argv[1], os.O_RDONLY)\nprint('here')\nsys.stdin.readline()"
    with running(looks, tmp_path) as looker:
        looker.wait_said("here")
        assert DirectoryLock(tmp_path).holders() == []


def test_a_dead_holder_is_not_woken_and_a_holder_of_an_older_procsv_has_no_start_time(path: Path) -> None:
    with running("print('here')") as dead:
        assert dead.wait() == 0
    path.write_text(f'{{"pid": {dead.pid}, "what": "a test"}}')
    lock = FileLock(path)
    lock.wake()
    assert lock.holder() == Holder(dead.pid, "a test", 0.0)
    assert Holder(1, "").since == 0.0


def test_a_lock_that_a_reader_holds_for_long_cannot_be_taken(path: Path) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    assert try_lock(fd, fcntl.LOCK_SH)
    assert not FileLock(path).try_acquire("a test", 1.0)
    os.close(fd)
