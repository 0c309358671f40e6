"""With --logdir, a program that names a directory inside it resumes there; any other directory is
refused or mapped.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

from procsv.base.run.adoption import root_of
from tests.run.test_adopted_logdir import NAMES, TRAIN, kill_trainer, sum_below
from tests.support.launched import launched, procsv

pytestmark = pytest.mark.fault


def program(place: Path, source: str) -> str:
    path = place / "train.py"
    path.write_text(source)
    return str(path)


@pytest.mark.long
def test_a_program_that_names_a_new_directory_in_the_logdir_at_each_start_resumes_in_the_first(tmp_path: Path) -> None:
    logdir, train = tmp_path / "logdir", program(tmp_path, TRAIN)
    with launched(logdir, "--drop-in", train, "supervisor-new", "{logdir}", "300", cwd=tmp_path) as run:
        run.wait_event("checkpoint_durable")
        kill_trainer(run, tmp_path)
        assert run.wait_end() == 0
    first = Path(run.events("logdir_adopted")[0]["logdir"])
    assert first.parent == logdir
    assert {Path(entry["path"]).parent for entry in run.events("checkpoint_durable")} == {first}
    assert list(first.glob("events.out.tfevents.*"))
    assert run.events("recovered")[1]["step"] > 0
    assert f"ended at 300 with {sum_below(300)}" in run.said()
    assert run.said().count(f"continues in {first}; ") == 1
    for directory in (logdir, first):
        assert f"{logdir}/procsv" in procsv("status", str(directory)).stdout

    with launched(logdir, "--drop-in", "--resume", train, "supervisor-new", "{logdir}", "300", cwd=tmp_path) as run:
        assert run.wait_end() == 0
    assert "resumes from step 300" in run.said()
    assert f"ended at 301 with {sum_below(301)}" in run.said()  # it takes a step before it looks

    # Other arguments may ask for another directory.
    with launched(logdir, "--drop-in", train, "supervisor-new", "{logdir}", "400", cwd=tmp_path) as run:
        assert run.wait_end() == 70
    assert f"--logdir {first} --map-logdir" in run.said()
    with launched(first, "--drop-in", "--map-logdir", train, "supervisor-new", "{logdir}", "400", cwd=tmp_path) as run:
        assert run.wait_end() == 0
    assert f"ended at 400 with {sum_below(400)}" in run.said()
    assert sorted(path for path in logdir.glob("tmp*") if path.is_dir() and any(path.iterdir())) == [first]


@pytest.mark.long
def test_a_run_with_its_own_checkpoints_resumes_from_them_though_the_program_names_a_directory_in_it(
    tmp_path: Path,
) -> None:
    logdir, train = tmp_path / "logdir", program(tmp_path, TRAIN)
    source = TRAIN.replace(
        "kind, place, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])", "place = sys.argv[1]; KIND"
    )
    program(tmp_path, source.replace("KIND", "kind, steps = 'supervisor', 50"))
    with launched(logdir, "--drop-in", train, "{logdir}") as run:
        assert run.wait_end() == 0
    program(tmp_path, source.replace("KIND", "kind, steps = 'supervisor-new', 100"))
    with launched(logdir, "--drop-in", "--resume", train, "{logdir}") as run:
        assert run.wait_end() == 0
    assert f"continues in {logdir}, " in run.said()
    assert f"ended at 100 with {sum_below(100)}" in run.said()
    assert run.events("logdir_adopted") == []


def test_a_program_given_another_directory_inside_or_outside_the_logdir_is_refused(tmp_path: Path) -> None:
    logdir, train = tmp_path / "logdir", program(tmp_path, NAMES)
    with launched(logdir, train, "ends", "{logdir}/first") as run:
        assert run.wait_end() == 0
    assert root_of(logdir / "first") == logdir
    with launched(logdir, train, "ends", "{logdir}/second") as run:
        assert run.wait_end() == 70
    assert re.search(rf"procsv: .* {logdir}/second", run.said())
    with launched(logdir, train, "ends", str(tmp_path / "elsewhere")) as run:
        assert run.wait_end() == 70
    assert "--map-logdir" in run.said()
    with tempfile.TemporaryDirectory() as temporary, launched(logdir, train, "ends", temporary) as run:
        assert run.wait_end() == 70
    assert f" --logdir {logdir} --map-logdir " in run.said()
    assert f"--logdir {temporary}" not in run.said(), "the next start has another one"


def test_a_mapped_logdir_replaces_any_one_directory_but_not_two(tmp_path: Path) -> None:
    logdir, train = tmp_path / "logdir", program(tmp_path, NAMES)
    for given in ("elsewhere", "{logdir}/inside", "gs://bucket/there"):
        with launched(logdir, "--map-logdir", train, "ends", given) as run:
            assert run.wait_end() == 0
        assert re.search(rf"procsv: .*{logdir} .* {given.replace('{logdir}', str(logdir))}", run.said())
    assert run.said().count(f"uses {logdir}\n") == 3
    assert run.events("logdir_adopted") == []
    with launched(logdir, "--map-logdir", train, "ends", "one", "two") as run:
        assert run.wait_end() == 70
    assert re.search(f" {Path.cwd()}/two, .* {logdir}", run.said())


def test_a_program_with_a_mapped_logdir_deletes_no_earlier_training(tmp_path: Path) -> None:
    train, theirs = program(tmp_path, NAMES), tmp_path / "theirs"
    (theirs / "old").mkdir(parents=True)
    kept = theirs / "old" / "model.ckpt-7.index"
    kept.touch()
    with launched(tmp_path / "logdir", "--map-logdir", train, "deletes", str(theirs)) as run:
        assert run.wait_end() == 70
    assert re.search(rf" {theirs}, .* 1 file ", run.said())
    assert kept.exists()
    assert len(run.events("exited", "trainer")) == 1

    os.utime(kept, (2**32, 2**32))  # this run's own directory, which the program may use as it likes
    with launched(tmp_path / "logdir", "--map-logdir", train, "deletes", str(theirs)) as run:
        run.wait_for("the deletion", lambda: not theirs.exists())
        run.end()
