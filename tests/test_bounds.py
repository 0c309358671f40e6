"""A soak checks each row of docs/bounds.md and reports exactly the rows whose bound a run has passed."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest

from procsv.base.run.paths import RunPaths
from scripts.documenting.__main__ import DOCS
from scripts.soaking.bounds import ELSEWHERE, FILES, ROWS, Row, Sight, find_growth

OVER = {  # files that pass a bound: how many of them, or how large
    "logdir/procsv/journal.jsonl": 2**27,
    "logdir/procsv/run.json": 2**20,
    "logdir/procsv/imports.json": 2**25,
    "logdir/procsv/logs/trainer.{}.log": 200,
    "logdir/procsv/logs/trainer.1.log": 2**30,
    "logdir/procsv/logs/summary.1.log": 2**22,
    "logdir/procsv/logs/on-event.log": 2**27,
    "logdir/procsv/crashes/{}.json": 7000,
    "logdir/model.ckpt-{}.index": 20,
    "logdir/model.ckpt-{}.rejected": 20,
    "logdir/procsv/staging/{}": 9,
    "logdir/procsv/fits/fit-{}-a.index": 200,
    "logdir/procsv/group/term-{}.json": 9,
    "logdir/procsv/events.out.tfevents.1": 2**26,
    "logdir/events.out.tfevents.{}": 300,
    "logdir/procsv/.pen.{}/x": 9,
    "logdir/procsv/.{}.new": 9,
    "run/{}.heartbeat": 50,
    "shm/slot.{}.0": 9,
    "shm/event.{}": 50,
}
OF_PROCESSES = {row.what for row in ROWS} - {row.what for row in (*FILES, *ELSEWHERE)}


def sight(top: Path) -> Sight:
    paths = RunPaths(top / "logdir", top / "run", top / "shm")
    paths.logs.mkdir(parents=True, exist_ok=True)
    (paths.logs / "trainer.1.log").touch()
    return Sight(paths, psutil.Process())


def is_of_files(told: str) -> bool:
    return not told.startswith(tuple(OF_PROCESSES))  # those are this test's own, and it is not a watchdog


def make(top: Path, name: str, much: int) -> None:
    for number in range(much if "{}" in name else 1):
        path = top / name.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(0 if "{}" in name else much)


def test_a_run_within_its_bounds_gets_no_report(tmp_path: Path) -> None:
    run = sight(tmp_path)
    for name in OVER:
        make(tmp_path, name.format(1), 1)
    assert [told for told in find_growth(run) if is_of_files(told)] == []


@pytest.mark.parametrize(("name", "much"), OVER.items())
def test_a_passed_bound_is_reported_by_its_row(tmp_path: Path, name: str, much: int) -> None:
    run = sight(tmp_path)
    make(tmp_path, name, much)
    assert [told for told in find_growth(run) if is_of_files(told)] != []


def test_every_row_about_files_can_be_passed(tmp_path: Path) -> None:
    run = sight(tmp_path)
    for name, much in OVER.items():
        make(tmp_path, name, much)
    told = " ".join(find_growth(run))
    never = [row.what for row in (*FILES, *ELSEWHERE) if row.what not in told]
    assert never == [row.what for row in ELSEWHERE if row.what.startswith(("copies", "`$XDG_STATE", "temporary"))]


@pytest.mark.parametrize("row", [row for row in ROWS if row.what in OF_PROCESSES], ids=lambda row: row.what)
def test_a_row_in_memory_is_measured(tmp_path: Path, row: Row) -> None:
    assert row.measure(sight(tmp_path)) >= 0


def test_the_page_and_the_soak_have_the_same_rows() -> None:
    page = (DOCS / "bounds.md").read_text()
    assert re.findall(r"^\| (?!what \||---)(.+?) \| .+ \| .+ \|$", page, re.MULTILINE) == [row.what for row in ROWS]
