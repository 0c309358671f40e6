"""A run's records can be read only by their owner and, if allowed, the group."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from procsv.base.identity import TRAINER
from procsv.base.journal.file import Journal
from procsv.base.run.paths import RunPaths
from procsv.base.run.records import make_home, make_record_dir, open_record
from procsv.base.system.atomic_file import replace_file
from procsv.base.system.system_clock import SystemClock


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    (tmp_path / "logdir").mkdir()
    return RunPaths(tmp_path / "logdir", tmp_path / "run", tmp_path / "shm")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode) & 0o777


@pytest.mark.parametrize(("group_readable", "directories", "files"), [(False, 0o700, 0o600), (True, 0o750, 0o640)])
def test_row_44_records_belong_to_the_owner_alone_unless_the_group_is_allowed(
    paths: RunPaths, group_readable: bool, directories: int, files: int
) -> None:
    paths.home.mkdir(mode=0o755)  # as made by an earlier procsv or a person
    make_home(paths, group_readable=group_readable)
    os.close(open_record(paths.log(TRAINER, 1), os.O_WRONLY | os.O_APPEND))
    Journal(paths.journal, SystemClock()).close()
    assert {mode(path) for path in (paths.home, paths.logs)} == {directories}
    assert {mode(path) for path in (paths.journal, paths.log(TRAINER, 1))} == {files}
    make_record_dir(paths.crashes)
    assert mode(paths.crashes) == directories


def test_row_44_no_record_is_written_through_a_symbolic_link(paths: RunPaths, tmp_path: Path) -> None:
    make_home(paths)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for link in (paths.journal, paths.log(TRAINER, 1), paths.home / ".run.json.new"):
        link.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        Journal(paths.journal, SystemClock())
    with pytest.raises(OSError, match="symbolic link"):
        open_record(paths.log(TRAINER, 1), os.O_WRONLY | os.O_APPEND)
    replace_file(paths.run_json, b"ours")
    assert paths.run_json.read_text() == "ours"
    assert victim.read_text() == "precious"
