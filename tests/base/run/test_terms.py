"""Members find the coordinator of their own start, and no other, by its term."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from procsv.base.run.paths import RunPaths, find_paths
from procsv.base.run.terms import Term, forget_terms, newest_term, withdraw_terms, write_term


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return find_paths(tmp_path)


def _term(run: str, scheduler: str = "slurm:7.0.0") -> Term:
    return Term(scheduler=scheduler, run=run, hosts=("n1",), port=1, client_secret="s" * 40)


def test_each_start_of_a_coordinator_has_a_higher_number(paths: RunPaths) -> None:
    assert [write_term(paths, _term(run)).number for run in ("a", "b")] == [1, 2]

    newest = newest_term(paths, "slurm:7.0.0")
    assert newest is not None
    assert (newest.run, newest.number) == ("b", 2)


def test_the_term_of_another_start_is_ignored(paths: RunPaths) -> None:
    write_term(paths, _term("a"))
    write_term(paths, _term("b", "slurm:7.1.0"))

    newest = newest_term(paths, "slurm:7.0.0")

    assert newest is not None
    assert newest.run == "a"
    assert newest_term(paths, "slurm:8.0.0") is None


def test_a_number_that_another_process_has_just_taken_is_skipped(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_term(paths, _term("a"))
    monkeypatch.setattr(
        "procsv.base.run.terms._numbers", lambda directory: []
    )  # as listed before the other one was written

    assert write_term(paths, _term("b")).number == 2


def test_a_filesystem_without_hard_links_has_terms_too(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert [write_term(paths, _term(run)).number for run in ("a", "b")] == [1, 2]
    newest = newest_term(paths, "slurm:7.0.0")
    assert newest is not None
    assert newest.run == "b"


def test_only_the_user_can_read_the_keys_and_no_log_has_them(paths: RunPaths) -> None:
    term = write_term(paths, _term("a"))

    (file,) = paths.terms.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.terms.stat().st_mode) == 0o700
    assert term.client_secret not in repr(term)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"number": 3}', '{"scheduler": "slurm:7.0.0", "run": "x", "number": 9}']
)
def test_a_file_that_is_not_a_term_is_skipped(paths: RunPaths, text: str) -> None:
    write_term(paths, _term("a"))
    (paths.terms / "term-5.json").write_text(text)

    newest = newest_term(paths, "slurm:7.0.0")

    assert newest is not None
    assert newest.run == "a"


def test_taking_the_logdir_removes_older_terms_and_the_end_of_the_run_removes_its_own(paths: RunPaths) -> None:
    for run in ("a", "b", "c"):
        last = write_term(paths, _term(run))
    forget_terms(paths, last.number)
    assert [path.name for path in paths.terms.iterdir()] == ["term-3.json"]

    withdraw_terms(paths, "a")
    assert list(paths.terms.iterdir())
    withdraw_terms(paths, "c")
    assert not list(paths.terms.iterdir())
