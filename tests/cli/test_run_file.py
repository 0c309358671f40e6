"""run.json is written whole, read strictly, and trusted only where the machine confirms it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest

from procsv.base.outcome import LastExit
from procsv.base.run.run_file import RunFile, read_run, write_run
from procsv.base.system.processes import boot_id, identify

if TYPE_CHECKING:
    from pathlib import Path


def a_run(**changes: object) -> RunFile:
    me = identify(os.getpid())
    run = RunFile(
        run="0123456789abcdef",
        target="train.py",
        args=("--steps", "3"),
        logdir="/l",
        run_dir="/r",
        shm_dir="/s",
        pid=me.pid,
        started=me.started,
        boot=me.boot,
        state="running",
        incarnation=2,
        started_at=12.5,
        last_exit=LastExit(None, "SIGKILL", "killed", "SIGKILL, sender unknown", 840),
    )
    return msgspec.structs.replace(run, **changes)


def test_a_written_file_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_run(path, a_run(), durable=True)

    assert a_run() == read_run(path)
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', "\x00\xff"])
def test_a_file_that_is_not_a_run_reads_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)

    assert read_run(path) is None
    assert read_run(tmp_path / "absent") is None


def test_another_version_reads_as_none(tmp_path: Path) -> None:
    write_run(tmp_path / "run.json", a_run(version=99), durable=False)

    assert read_run(tmp_path / "run.json") is None


def test_a_watchdog_is_identified_by_more_than_its_pid() -> None:
    assert a_run().is_active
    assert not a_run(started=1.0).is_active
    assert not a_run(boot=f"not {boot_id()}").is_active
