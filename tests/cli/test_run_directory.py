"""Without --logdir, a run's directory is named after its target."""

from __future__ import annotations

from pathlib import Path

import pytest

from procsv.base.run.paths import shorten_path
from procsv.cli.launching.new_start import make_new_directory, newest_directory
from tests.cli.test_commands import a_run, procsv


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_first_run_is_named_after_its_target_and_the_next_ones_are_numbered() -> None:
    assert newest_directory("train") == Path("runs/train")
    assert make_new_directory("train") == Path("runs/train")
    for number in (2, 3):
        assert make_new_directory("train") == Path(f"runs/train-{number}")
        assert newest_directory("train") == Path(f"runs/train-{number}")


def test_run_ten_is_newer_than_nine_and_gaps_stay() -> None:
    for name in ("train", "train-9", "train-10"):
        Path("runs", name).mkdir(parents=True)
    assert newest_directory("train") == Path("runs/train-10")
    assert make_new_directory("train") == Path("runs/train-11")


def test_another_targets_directory_and_a_file_are_not_runs_of_this_target() -> None:
    for name in ("train-eval-3", "train-1", "train-x", "other-7"):
        Path("runs", name).mkdir(parents=True)
    Path("runs", "train-5").touch()
    assert newest_directory("train") == Path("runs/train")
    assert make_new_directory("train") == Path("runs/train")
    Path("runs", "train-4").mkdir()
    assert make_new_directory("train") == Path("runs/train-6")  # 5 is in the way


def test_asking_for_a_new_run_in_a_named_directory_is_a_contradiction() -> None:
    Path("train.py").touch()
    done = procsv("launch", "--new", "--logdir", "mine", "train.py")
    assert (done.returncode, "--new" in done.stderr) == (2, True)


def test_a_path_is_shown_relative_to_the_working_directory_and_a_url_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shorten_path(str(tmp_path / "runs" / "a")) == "runs/a"
    assert shorten_path("/elsewhere/a") == "/elsewhere/a"
    assert shorten_path("gs://bucket/a") == "gs://bucket/a"
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert shorten_path("/elsewhere/a") == "/elsewhere/a"


def test_a_run_of_another_target_that_is_named_like_a_numbered_run_is_not_one() -> None:
    for name in ("train", "train-2", "train-3"):
        Path("runs", name).mkdir(parents=True)
    a_run(Path("runs", "train-2"), target="train.py")
    a_run(Path("runs", "train-3"), target="train-3.py")
    assert newest_directory("train") == Path("runs/train-2")
    assert make_new_directory("train") == Path("runs/train-4")


def test_a_numbered_directory_that_no_launch_has_made_is_not_a_run() -> None:
    for name in ("train", "train-2", "train-3", "train-20261127"):
        Path("runs", name).mkdir(parents=True)
    Path("runs", "train-3", "model.ckpt-5.manifest.json").touch()  # the user has removed procsv/
    Path("runs", "train-20261127", "checkpoint").write_text("of a program without procsv")
    assert newest_directory("train") == Path("runs/train-3")
    assert make_new_directory("train") == Path("runs/train-4")
