"""A later launch removes the memory of killed launches, except what a process holds or a launch may resume from."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from procsv.base.errors import LogdirLocked
from procsv.base.run.cleanup import OWNER
from procsv.base.run.paths import RunPaths, find_paths
from procsv.base.run.run_file import RunFile, write_run
from procsv.base.run.run_id import make_id, write_id
from procsv.base.run.stale_memory import (
    UNTOUCHED_S_MAX,
    HeldDirectory,
    Logdir,
    Owner,
    find_claim,
    is_stale,
    judge_logdir,
    make_owner,
    sweep_directories,
)
from procsv.base.system.locks import FileLock
from tests.support import own_processes

NOW_S = 1_900_000_000.0
ID = "0123456789abcdef"
RUN = Owner(home="/data/run/procsv", device=8, mounts="mnt:[1]", is_kept=True)
LAUNCH = msgspec.structs.replace(RUN, is_kept=False)
HOLDS = """
import sys
from pathlib import Path
from procsv.base.run.stale_memory import HeldDirectory
HeldDirectory(Path(sys.argv[1])).hold(print)
print("held", flush=True)
sys.stdin.read()
"""


# -- decisions -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("owner", "logdir", "untouched_s", "goes"),
    [
        (RUN, Logdir.RESUMABLE, 0.0, False),
        (RUN, Logdir.HIDDEN, 0.0, False),
        (RUN, Logdir.DELETED, 0.0, True),
        (RUN, Logdir.ENDED, 0.0, True),
        (RUN, Logdir.RESUMABLE, UNTOUCHED_S_MAX + 1, True),
        (RUN, Logdir.HIDDEN, UNTOUCHED_S_MAX + 1, True),
        (LAUNCH, Logdir.HIDDEN, 0.0, True),
        (LAUNCH, Logdir.RESUMABLE, 0.0, True),
        (None, Logdir.HIDDEN, 0.0, False),
        (None, Logdir.HIDDEN, UNTOUCHED_S_MAX + 1, True),
    ],
)
def test_unheld_memory_is_removed_once_no_launch_can_resume_from_it(
    owner: Owner | None, logdir: Logdir, untouched_s: float, goes: bool
) -> None:
    assert is_stale(owner, logdir, untouched_s) is goes


def a_run(**changes: object) -> RunFile:
    run = RunFile(
        run=ID,
        target="train.py",
        logdir="/data/run",
        run_dir="/r",
        shm_dir="/s",
        pid=1,
        started=1.0,
        boot="",
        state="running",
        incarnation=1,
        started_at=1.0,
    )
    return msgspec.structs.replace(run, **changes)


@pytest.mark.parametrize(
    ("mounts", "there", "device", "run", "is_judged"),
    [
        ("mnt:[1]", ID, 8, a_run(), Logdir.RESUMABLE),
        ("mnt:[1]", ID, 8, None, Logdir.RESUMABLE),
        ("mnt:[1]", ID, 8, a_run(ended_at=2.0, memory_step=7, durable_step=7), Logdir.ENDED),
        ("mnt:[1]", ID, 8, a_run(ended_at=2.0), Logdir.ENDED),
        ("mnt:[1]", ID, 8, a_run(ended_at=2.0, memory_step=7, durable_step=5), Logdir.RESUMABLE),
        ("mnt:[1]", None, 8, None, Logdir.DELETED),
        ("mnt:[1]", "fedcba9876543210", 8, a_run(), Logdir.DELETED),
        ("mnt:[1]", None, 9, None, Logdir.HIDDEN),  # its disk is not mounted
        ("mnt:[1]", "fedcba9876543210", 9, a_run(), Logdir.HIDDEN),
        ("mnt:[1]", "", 8, a_run(), Logdir.HIDDEN),
        ("mnt:[2]", None, 8, None, Logdir.HIDDEN),  # another container's path
        ("mnt:[2]", ID, 8, a_run(ended_at=2.0), Logdir.HIDDEN),
        ("", None, 8, None, Logdir.HIDDEN),
    ],
)
def test_a_logdir_counts_as_deleted_or_ended_only_if_that_can_be_seen(
    mounts: str, there: str | None, device: int, run: RunFile | None, is_judged: Logdir
) -> None:
    assert judge_logdir(RUN, mounts, ID, there, device, run) is is_judged


def test_an_unreadable_namespace_is_never_ours() -> None:
    owner = msgspec.structs.replace(RUN, mounts="")
    assert judge_logdir(owner, "", ID, None, 8, None) is Logdir.HIDDEN


# -- removal of leftovers --------------------------------------------------------------------------------------
class Killed:
    """The leftovers of a killed run: a runtime directory and shared memory with a snapshot."""

    def __init__(self, root: Path, name: str) -> None:
        home = root / "logdirs" / name / "procsv"
        run_id = make_id(home)
        self.paths = RunPaths(home.parent, root / f"procsv-{run_id}", root / f"procsv-{os.getuid()}-{run_id}")
        for directory, files in ((self.paths.run_dir, ("run.lock", "a.sock")), (self.paths.shm_dir, ("slot.1.0",))):
            directory.mkdir(mode=0o700)
            held = HeldDirectory(directory)
            held.claim(make_owner(self.paths))
            for file in files:
                (directory / file).write_text("")
        self.touch(0.0)

    @property
    def directories(self) -> tuple[Path, Path]:
        return self.paths.run_dir, self.paths.shm_dir

    def touch(self, age_s: float) -> None:
        for directory in self.directories:
            for path in (*directory.iterdir(), directory):
                os.utime(path, (NOW_S - age_s, NOW_S - age_s))

    def is_there(self) -> list[bool]:
        return [directory.exists() for directory in self.directories]


@pytest.fixture
def killed(tmp_path: Path) -> Killed:
    return Killed(tmp_path, "killed")


def test_the_memory_of_a_killed_run_is_kept_for_its_next_launch(tmp_path: Path, killed: Killed) -> None:
    sweep_directories([tmp_path], NOW_S)
    assert killed.is_there() == [True, True]
    killed.paths.logdir.rename(tmp_path / "logdirs" / "moved")
    (tmp_path / "logdirs" / "moved").rename(killed.paths.logdir)
    sweep_directories([tmp_path], NOW_S)
    assert (killed.paths.shm_dir / "slot.1.0").exists()


def ended(killed: Killed) -> None:
    run = a_run(logdir=str(killed.paths.logdir), ended_at=2.0, memory_step=5, durable_step=5)
    write_run(killed.paths.run_json, run, durable=False)


def deleted(killed: Killed) -> None:
    shutil.rmtree(killed.paths.logdir)


def made_again(killed: Killed) -> None:
    killed.paths.home.rename(killed.paths.home.with_name("gone"))
    make_id(killed.paths.home)


def untouched(killed: Killed) -> None:
    killed.touch(UNTOUCHED_S_MAX + 1)


LOSSES = pytest.mark.parametrize("lose", [deleted, made_again, ended, untouched])


@LOSSES
def test_memory_that_no_launch_can_resume_from_is_removed(
    tmp_path: Path, killed: Killed, lose: Callable[[Killed], None]
) -> None:
    lose(killed)
    sweep_directories([tmp_path], NOW_S)
    assert killed.is_there() == [False, False]


@LOSSES
def test_memory_that_a_living_process_holds_stays(
    tmp_path: Path, killed: Killed, lose: Callable[[Killed], None]
) -> None:
    with contextlib.ExitStack() as held:
        for directory in killed.directories:
            held.enter_context(holding(directory))
        lose(killed)
        sweep_directories([tmp_path], NOW_S)
        assert killed.is_there() == [True, True]
        assert (killed.paths.shm_dir / "slot.1.0").exists()
    killed.touch(UNTOUCHED_S_MAX + 1)
    sweep_directories([tmp_path], NOW_S)
    assert killed.is_there() == [False, False]


@contextlib.contextmanager
def holding(directory: Path, within: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    command = [*within, sys.executable, "-c", HOLDS, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.skipif(bool(own_processes.why_not()), reason=own_processes.why_not())
def test_a_lock_of_another_container_counts_and_its_logdir_is_not_searched(tmp_path: Path, killed: Killed) -> None:
    with holding(killed.paths.shm_dir, within=("unshare", "--mount", "--pid", "--fork", "--kill-child")):
        deleted(killed)
        sweep_directories([tmp_path], NOW_S)
        assert killed.paths.shm_dir.exists()


@pytest.mark.skipif(bool(own_processes.why_not()), reason=own_processes.why_not())
def test_a_logdir_that_is_deleted_for_us_may_exist_in_another_container(tmp_path: Path, killed: Killed) -> None:
    deleted(killed)
    code = (
        "import sys\nfrom pathlib import Path\nfrom procsv.base.run.stale_memory import sweep_directories\n"
        f"sweep_directories([Path(sys.argv[1])], {NOW_S})\n"
    )
    subprocess.run(["unshare", "--mount", sys.executable, "-c", code, str(tmp_path)], check=True)
    assert killed.is_there() == [True, True]
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert killed.is_there() == [False, False]


def test_a_lock_in_a_runtime_directory_protects_the_memory_too(tmp_path: Path, killed: Killed) -> None:
    lock = FileLock(killed.paths.run_dir / "writer.lock")
    assert lock.try_acquire("trainer 1", 0.0)
    deleted(killed)
    sweep_directories([tmp_path], NOW_S)
    assert killed.is_there() == [True, False]
    lock.release()
    sweep_directories([tmp_path], NOW_S)
    assert killed.is_there() == [False, False]


def test_other_users_memory_is_never_touched(tmp_path: Path) -> None:
    owner = msgspec.json.encode(LAUNCH)
    places = {name: tmp_path / name for name in ("procsv-data", f"procsv-{ID}", f"other-{os.getuid()}-{ID}")}
    for path in places.values():
        path.mkdir(mode=0o755)
        (path / OWNER).write_bytes(owner)
        (path / "slot.1.0").write_text("")
    (tmp_path / f"procsv-{os.getuid()}-{ID}").symlink_to(places["procsv-data"])
    sweep_directories([tmp_path], NOW_S + 2 * UNTOUCHED_S_MAX)
    assert all((path / "slot.1.0").exists() for path in places.values())


def test_a_foreign_file_in_our_directory_stays(tmp_path: Path, killed: Killed) -> None:
    (killed.paths.shm_dir / "notes.txt").write_text("mine")
    deleted(killed)
    sweep_directories([tmp_path], NOW_S)
    assert [path.name for path in killed.paths.shm_dir.iterdir()] == ["notes.txt"]


def test_a_copy_that_was_not_used_for_a_week_is_removed_and_a_later_one_stays(tmp_path: Path) -> None:
    old, new = (tmp_path / f"procsv-{os.getuid()}-{ID}-mirror-{number}" for number in ("00000000", "11111111"))
    for directory, age_s in ((old, UNTOUCHED_S_MAX + 1), (new, UNTOUCHED_S_MAX - 1)):
        directory.mkdir(mode=0o700)
        for path in (directory / "slot.1.0", directory / ".slot.2.0.new"):
            path.write_text("")
            os.utime(path, (NOW_S - age_s, NOW_S - age_s))
        os.utime(directory, (NOW_S - age_s, NOW_S - age_s))
    sweep_directories([tmp_path], NOW_S)
    assert (old.exists(), new.exists()) == (False, True)


# -- held memory -----------------------------------------------------------------------------------------------
def test_a_directory_removed_under_its_holder_is_held_and_owned_again(tmp_path: Path, killed: Killed) -> None:
    place = killed.paths.shm_dir
    held = HeldDirectory(place)
    held.hold(print)
    held.claim(make_owner(killed.paths))
    shutil.rmtree(place)
    place.mkdir(mode=0o700)
    held.keep_held()
    deleted(killed)
    sweep_directories([tmp_path], NOW_S)
    assert (place / OWNER).exists()
    held.release_directory()


def test_the_path_of_a_living_run_whose_logdir_was_deleted_is_claimed(tmp_path: Path, killed: Killed) -> None:
    lock = FileLock(killed.paths.run_lock)
    assert lock.try_acquire("procsv launch train.py", 0.0)
    made_again(killed)
    found = find_paths(killed.paths.logdir)
    newcomer = msgspec.structs.replace(found, run_dir=tmp_path / f"procsv-{found.id}")
    holder = find_claim(newcomer)
    assert holder is not None
    assert holder.what == "procsv launch train.py"
    lock.release_lock()
    assert find_claim(newcomer) is None
    write_id(killed.paths.home, killed.paths.id)
    assert find_paths(killed.paths.logdir).id == killed.paths.id


def test_memory_that_a_process_elsewhere_holds_is_not_taken(tmp_path: Path, killed: Killed) -> None:
    """For example two containers with one URL as logdir: neither sees the other's processes or files."""
    waits = list[float]()
    with holding(killed.paths.shm_dir):
        held = HeldDirectory(killed.paths.shm_dir)
        with pytest.raises(LogdirLocked, match="another container"):
            held.hold(waits.append, alone=True)
        held.release_directory()
    assert waits
    held.hold(waits.append, alone=True)
    HeldDirectory(killed.paths.shm_dir).hold(print)  # shared with the services
    held.release_directory()
