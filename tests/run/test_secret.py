"""Launches derive their keys from a secret file, keep keys out of the logdir, and refuse a launch
with another secret.

They learn their tasks from Slurm's variables. Launches whose scheduler gives the hosts need no
shared file to find each other (test_machines_by_address.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from procsv.base.identity import TaskId
from procsv.base.run.terms import Term
from tests.support.machines import WAITS, Machines, launches_of

pytestmark = pytest.mark.fault

TASKS = ("chief", "worker.0")
ENDED = dict.fromkeys(TASKS, 0)


class InStep(Machines):
    """Each launch gets the variables of one process in a Slurm step."""

    def own_variables(self, task: TaskId) -> dict[str, str]:
        rank, ranks = self.tasks.index(task), len(self.tasks)
        step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
        return {**step, "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(ranks)}


@contextlib.contextmanager
def launches(directory: Path, *args: str, **env: str) -> Iterator[InStep]:
    (directory / "train.py").write_text(WAITS)
    options = ("--cluster", "slurm", "--workers", "1", *args, "train.py")
    with launches_of(InStep(directory, TASKS, options, env)) as run:
        yield run


def secret(directory: Path, name: str = "secret", data: bytes = b"0123456789abcdef" * 2, mode: int = 0o600) -> str:
    path = directory / name
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


def test_no_key_is_in_the_logdir(tmp_path: Path) -> None:
    with launches(tmp_path, "--secret-file", secret(tmp_path)) as run:
        chief = run.launch_all()
        chief.wait_event("spawned", 1, "worker.0")
        (file,) = (run.logdir / "procsv" / "group").glob("term-*.json")
        term = json.loads(file.read_text())
        assert (term["server_key"], term["client_secret"]) == ("", "")
        assert term["secret"]
        assert set(term) == set(Term.__struct_fields__)

        (run.logdir / "end").touch()
        assert run.codes() == ENDED


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    with launches(tmp_path, PROCSV_SECRET_FILE=secret(tmp_path)) as run:
        chief = run.launch_all()
        chief.wait_event("spawned", 1, "worker.0")
        (file,) = (run.logdir / "procsv" / "group").glob("term-*.json")
        assert not json.loads(file.read_text())["client_secret"]
        (run.logdir / "end").touch()
        assert run.codes() == ENDED


def test_a_launch_with_another_secret_or_none_learns_the_reason(tmp_path: Path) -> None:
    own, other = secret(tmp_path), secret(tmp_path, "other", b"x" * 32)
    with launches(tmp_path) as run:
        chief = run.launch("chief", "--secret-file", own)
        for more, said in (
            (("--secret-file", other), "another secret"),
            ((), "--secret-file, and this launch"),
        ):
            refused = run.launch("worker.0", *more)
            assert refused.wait_end() == 2
            assert said in refused.said()
        run.launch("worker.0", "--secret-file", own)
        chief.wait_event("spawned", 1, "worker.0")
        (run.logdir / "end").touch()
        assert run.codes() == ENDED


def test_a_launch_with_a_secret_learns_that_the_coordinator_has_none(tmp_path: Path) -> None:
    with launches(tmp_path) as run:
        chief = run.launch("chief")
        refused = run.launch("worker.0", "--secret-file", secret(tmp_path))
        assert refused.wait_end() == 2
        assert "--secret-file, and the coordinator" in refused.said()
        run.launch("worker.0")
        chief.wait_event("spawned", 1, "worker.0")
        (run.logdir / "end").touch()
        assert run.codes() == ENDED


def test_a_file_that_is_not_a_secret_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with launches(tmp_path) as run:
        for path, said in (
            (secret(tmp_path, "short", b"short"), "has 5 bytes, "),
            (secret(tmp_path, "open", mode=0o644), "0644"),
            (str(tmp_path / "none"), "cannot be read: No such file"),
        ):
            refused = run.launch("chief", "--secret-file", path)
            assert refused.wait_end() == 2
            assert said in refused.said()
        assert not (run.logdir / "procsv").exists()
