"""A change to a program's own files since the trainer imported them is noticed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from procsv.base.run import loaded
from procsv.base.run.loaded import (
    File,
    LoadedModules,
    changed_files,
    list_files,
    read_file,
    read_loaded,
    read_own,
    take_earlier,
    write_loaded,
)
from procsv.base.run.paths import RunPaths, find_paths
from procsv.base.run.run_id import make_id


def record(home: Path, *more: Path) -> LoadedModules:
    """Return the record of a program with two files in its directory and others elsewhere."""
    home.mkdir(parents=True)
    (home / "train.py").write_text("import model\n")
    (home / "model.py").write_text("RATE = 0.1\n")
    paths = [home / "train.py", home / "model.py", *more]
    files = {str(path): file for path in paths if (file := read_file(str(path))) is not None}
    assert len(files) == len(paths)
    return LoadedModules(files=files, home=str(home), attempt=1)


def test_an_edit_or_a_deletion_is_a_change_and_a_new_time_is_not(tmp_path: Path) -> None:
    home = tmp_path / "project"
    before = record(home)
    os.utime(home / "train.py", (1, 1))
    assert changed_files(before, str(home)) == ()
    (home / "model.py").write_text("RATE = 0.2\n")  # of the same size
    assert changed_files(before, str(home)) == ("model.py",)
    (home / "train.py").unlink()
    assert changed_files(before, str(home)) == ("train.py", "model.py")


def test_a_moved_or_copied_project_is_unchanged_and_is_checked_where_it_is_now(tmp_path: Path) -> None:
    shared = tmp_path / "lib" / "shared.py"
    shared.parent.mkdir()
    shared.touch()
    before = record(tmp_path / "project", shared)
    copy = tmp_path / "somewhere" / "else"
    shutil.copytree(tmp_path / "project", copy)
    assert changed_files(before, str(copy)) == ()
    (copy / "model.py").write_text("RATE = 0.3\n")
    assert changed_files(before, str(copy)) == ("model.py",)
    assert changed_files(before, str(tmp_path / "project")) == ()
    shared.write_text("more")
    assert changed_files(before, str(copy)) == ("model.py", "../lib/shared.py")


def test_a_file_too_large_to_read_is_compared_by_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "DIGEST_BYTES_MAX", 5)
    home = tmp_path / "project"
    before = record(home)
    assert {file.digest for file in before.files.values()} == {""}
    assert changed_files(before, str(home)) == ()
    (home / "model.py").write_text("RATE = 0.02\n")
    assert changed_files(before, str(home)) == ("model.py",)


def test_a_record_without_digests_is_compared_by_size_and_time() -> None:
    assert File(1, 2, "").is_as(File(1, 2, "abc"))
    assert not File(1, 2, "").is_as(File(1, 3, "abc"))
    assert File(1, 2, "abc").is_as(File(3, 4, "abc"))


def test_a_list_of_files_is_short_and_holds_nothing_that_a_terminal_obeys() -> None:
    assert list_files(("a.py", "\x1b[31mb.py")) == "a.py, \\x1b[31mb.py"
    assert list_files([f"{number}.py" for number in range(20)]).endswith("7.py and 12 more")


COMMAND = ("python", "3", "train.py")


@pytest.fixture
def left(tmp_path: Path) -> Iterator[RunPaths]:
    """Make a logdir in which a launch has left the list of its program's imports."""
    program = tmp_path / "train.py"
    program.touch()
    (tmp_path / "run" / "procsv").mkdir(parents=True)
    paths = find_paths(tmp_path / "run")
    paths.run_dir.mkdir(parents=True)
    found = read_file(str(program))
    assert found is not None
    record = LoadedModules(modules=("numpy",), command=COMMAND, files={str(program): found}, logdir_id=paths.id)
    write_loaded(paths.imports, record)
    yield paths
    shutil.rmtree(paths.run_dir)


def change(paths: RunPaths, **changes: Any) -> None:
    write_loaded(paths.imports, msgspec.structs.replace(read_own(paths.imports), **changes))


def test_the_next_launch_of_a_command_preloads_what_the_previous_one_imported(left: RunPaths) -> None:
    assert take_earlier(left, COMMAND)
    assert read_loaded(left.loaded).modules == ("numpy",)


@pytest.mark.parametrize(
    "changes",
    [{"logdir_id": "0123456789abcdef"}, {"logdir_id": ""}, {"environment": {"BROWSER": "/tmp/evil"}}, {"modules": ()}],
    ids=str,
)
def test_nothing_is_preloaded_from_another_logdir_or_environment(left: RunPaths, changes: dict[str, Any]) -> None:
    change(left, **changes)
    assert not take_earlier(left, COMMAND)
    assert not left.loaded.exists()


def test_a_copied_logdir_preloads_nothing(left: RunPaths, tmp_path: Path) -> None:
    make_id(left.home)
    change(left, logdir_id=find_paths(tmp_path / "run").id)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert not take_earlier(find_paths(tmp_path / "copy"), COMMAND)
