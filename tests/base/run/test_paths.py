"""A run has one set of paths however its logdir is spelt, in directories that no other user can have prepared."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from procsv.base.errors import UserError
from procsv.base.identity import SUMMARY, TRAINER
from procsv.base.run.paths import (
    SHM_ROOT,
    SOCKET_PATH_BYTES_MAX,
    RunPaths,
    check_socket_paths,
    find_paths,
    local_home,
    logdir_hash,
    make_private_dir,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "mnist"
    path.mkdir(parents=True)
    return path


def test_every_spelling_of_a_logdir_is_one_run(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (logdir.parent / "link").symlink_to(logdir)
    monkeypatch.chdir(logdir.parent)
    spellings: list[str | Path] = [
        logdir,
        "mnist",
        "./mnist/",
        "../runs/mnist",
        "link",
        logdir.parent / "link" / ".",
        f"{logdir}//",
    ]
    assert {find_paths(spelling) for spelling in spellings} == {find_paths(logdir)}


def test_two_logdirs_are_two_runs(logdir: Path) -> None:
    assert find_paths(logdir).run_dir != find_paths(logdir.parent).run_dir
    assert logdir_hash(logdir) != logdir_hash(logdir.parent)
    assert len(logdir_hash(logdir)) == 16


def test_a_logdir_is_the_same_run_before_and_after_it_is_created(tmp_path: Path) -> None:
    before = find_paths(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "new").mkdir()
    assert find_paths(tmp_path / "new") == before


def test_a_logdir_whose_name_is_not_utf_8_has_all_its_paths(tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    odd.mkdir()
    assert find_paths(odd).logdir == odd


def test_finding_the_paths_creates_nothing(logdir: Path) -> None:
    paths = find_paths(logdir)
    assert list(logdir.iterdir()) == []
    assert not paths.run_dir.exists()
    assert not paths.shm_dir.exists()


def test_the_run_directory_is_where_the_system_keeps_such_directories(logdir: Path) -> None:
    paths = find_paths(logdir)
    assert paths.run_dir == Path(os.environ["XDG_RUNTIME_DIR"]) / f"procsv-{logdir_hash(logdir)}"
    assert paths.shm_dir.parent in (SHM_ROOT, paths.run_dir)


@pytest.mark.parametrize("runtime", ["", "/nowhere/at/all", "/proc/version", "."])
def test_without_a_runtime_directory_the_temporary_one_is_used(
    logdir: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    assert find_paths(logdir).run_dir == Path(tempfile.gettempdir()) / f"procsv-{os.getuid()}-{logdir_hash(logdir)}"


def test_without_shared_memory_snapshots_go_to_the_run_directory(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("procsv.base.run.paths.SHM_ROOT", logdir / "no shm here")
    paths = find_paths(logdir)
    assert paths.shm_dir == paths.run_dir / "shm"


def test_every_path_of_a_run_is_in_one_of_its_directories(logdir: Path) -> None:
    paths = find_paths(logdir)
    in_logdir = [paths.run_json, paths.journal, paths.logs, paths.crashes, paths.staging, paths.log(TRAINER, 1)]
    in_run = [
        paths.control_socket,
        paths.service_socket(SUMMARY),
        paths.run_lock,
        paths.writer_lock(TRAINER),
        paths.service_lock(SUMMARY),
        paths.heartbeat(TRAINER, 1),
        paths.last_words(TRAINER, 1),
        paths.event_position("1-0"),
    ]
    assert all(path.is_relative_to(paths.home) for path in in_logdir)
    assert all(path.parent == paths.run_dir for path in in_run)
    assert len(set(in_logdir + in_run)) == len(in_logdir + in_run)


# -- directories -------------------------------------------------------------------------------------------------
def test_a_private_directory_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private_dir(tmp_path / "run")
    finally:
        os.umask(before)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_our_own_directory_is_reused_and_made_private(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    (tmp_path / "run" / "stale.sock").touch()
    make_private_dir(tmp_path / "run")
    make_private_dir(tmp_path / "run")

    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "run" / "stale.sock").exists()


@pytest.mark.parametrize("what", ["file", "link to a directory", "dangling link"])
def test_what_another_user_may_have_put_there_is_refused_with_the_fix(tmp_path: Path, what: str) -> None:
    path = tmp_path / "run"
    if what == "file":
        path.write_text("x")
    else:
        path.symlink_to(tmp_path if what == "link to a directory" else tmp_path / "nowhere")
    with pytest.raises(UserError, match="XDG_RUNTIME_DIR") as caught:
        make_private_dir(path)
    assert caught.value.exit_code == 73


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir(mode=0o777)
    mode = (tmp_path / "run").stat().st_mode
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    with pytest.raises(UserError, match=str(tmp_path / "run")):
        make_private_dir(tmp_path / "run")
    assert (tmp_path / "run").stat().st_mode == mode


# -- socket paths ------------------------------------------------------------------------------------------------
def test_a_socket_path_that_is_too_long_is_found_before_anything_starts(tmp_path: Path) -> None:
    room = SOCKET_PATH_BYTES_MAX - len("/checkpoint.sock")
    fits = Path("/" + "x" * (room - 1))
    check_socket_paths(RunPaths(tmp_path, fits, tmp_path))
    with pytest.raises(UserError, match=f"has {SOCKET_PATH_BYTES_MAX + 1} bytes") as caught:
        check_socket_paths(RunPaths(tmp_path, fits.with_name(fits.name + "x"), tmp_path))
    assert caught.value.exit_code == 73
    with pytest.raises(UserError):  # bytes, not letters
        check_socket_paths(RunPaths(tmp_path, Path("/" + "ä" * (room // 2 + 1)), tmp_path))


def test_a_logdir_that_is_a_url_has_the_same_local_home_wherever_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    home = local_home("gs://bucket/a/run")
    assert home.parent == tmp_path / "state" / "procsv"
    assert home.name.startswith("run-")
    assert find_paths("gs://bucket/a/run/").logdir == home
    assert local_home("gs://bucket/b/run") != home
    monkeypatch.chdir(tmp_path)
    assert local_home("gs://bucket/a/run") == home
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert local_home("gs://bucket/a/run").parent == tmp_path / ".local" / "state" / "procsv"
    assert local_home(tmp_path) == tmp_path.resolve()


def test_a_url_as_logdir_without_a_home_names_the_variables_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    done = subprocess.run(  # for a user that no file lists and who has no home
        [sys.executable, "-c", NO_HOME], capture_output=True, text=True, timeout=300, check=True, cwd=ROOT
    )
    assert "HOME" in done.stdout
    assert "XDG_STATE_HOME" in done.stdout


NO_HOME = """
import os
from procsv.base.errors import UserError
from procsv.base.run.paths import find_paths
if os.geteuid() == 0:
    os.setuid(54321)
try:
    find_paths("gs://bucket/run")
except UserError as error:
    print(error)
"""


READ_ONLY = """
for place in /tmp /var/tmp; do  # what is in them stays, which may be the interpreter
    mount --bind $place $place && mount -o remount,bind,ro $place || exit 99
done
cd /proc
exec "$0" -c 'from procsv.base.errors import UserError
from procsv.base.run.paths import find_paths
try:
    find_paths("/proc")
except UserError as error:
    print(error)'
"""


def test_a_missing_temporary_directory_names_the_variables_to_set() -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": "/tmp", "XDG_RUNTIME_DIR": ""}
    command = ["unshare", "--mount", "sh", "-c", READ_ONLY, sys.executable]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode in (1, 99):
        pytest.skip("only root, where it may mount, can make /tmp read-only")
    assert done.returncode == 0, done.stderr
    assert "TMPDIR" in done.stdout
    assert "XDG_RUNTIME_DIR" in done.stdout
